"""Builds ahead: all items are built once, side by side, and what fails there is left for later."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kernelyard.contracts.vector_add import VECTOR_ADD
from kernelyard.registry.matrix import Point
from kernelyard.tuner import ahead
from kernelyard.tuner.bench import Item
from kernelyard.tuner.limits import Limits


def items(kernel: str = "torch.eager", count: int = 4, patient: bool = False) -> list[Item]:
    return [Item(kernel, {}, VECTOR_ADD.workload(Point((8 + i,), "float32")), patient) for i in range(count)]


def test_every_item_is_built_once_and_the_slow_ones_first(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, int]] = []

    class Recorded(ahead.Bench):
        def build(self, item: Item) -> Any:
            seen.append(("build", item.workload.dim("n")))

        def prepare(self, item: Item) -> Any:
            seen.append(("prepare", item.workload.dim("n")))

    monkeypatch.setattr(ahead, "Bench", Recorded)
    quick, slow = items(count=3), [Item("torch.eager", {}, VECTOR_ADD.workload(Point((99,), "float32")), patient=True)]
    ahead.build([*quick, *slow], Limits(), 2)
    assert sorted(seen) == [("build", 8), ("build", 9), ("build", 10), ("prepare", 99)] and seen[0] == ("prepare", 99)


def test_real_processes_build_and_what_fails_there_costs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    ahead.build([*items(count=1), *items("no.such", 1)], Limits(), 2, said.append)
    assert said == ["building 2 kernels ahead in 2 processes"]


def test_with_no_processes_nothing_happens() -> None:
    ahead.build(items(), Limits(), 0, lambda text: pytest.fail(text))


def test_a_small_machine_or_a_few_items_are_not_worth_it() -> None:
    assert [ahead.processes(100, cores) for cores in (1, 2, 3, 16, 64)] == [0, 0, 2, 12, 12]
    assert [ahead.processes(count, 16) for count in (0, 1, 3, 4, 9)] == [0, 0, 0, 2, 4]
    assert ahead.processes(1) == 0 and isinstance(ahead.processes(100), int)


