"""What no stored choice served: said once, told by `selections`, handed over when the process ends."""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

import kernelyard
from kernelyard.registry import choices, misses, selections
from kernelyard.registry.machine import identity
from kernelyard.registry.op import Point
from kernelyard.registry.registry import Registry
from kernelyard.registry.spec import Choice, Miss, Missed
from kernelyard.store.misses import listed
from tests.registry.fakes import SCALE, make_choice, make_kernel

Install = Callable[..., Registry]
X = torch.ones(2, 4)
ASKED = SCALE.workload(Point((2, 4), "float32"))
BEST, LAST = make_kernel("fake.best", 1, priority=1), make_kernel("fake.last", 3)


@pytest.fixture(autouse=True)
def afresh(install: Install) -> Iterator[None]:
    misses.forget()
    selections.forget()
    yield
    misses.forget()


def tuned_nothing(*kernels: object, install: Install) -> None:
    """A store that holds no choice: unlike none at all, it has something to miss."""
    install(*kernels)
    choices.connect(lambda *asked: None)


def missed() -> list[Missed | None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        kernelyard.ops.scale(X)
    return [one.missed for one in kernelyard.selections()]


def test_a_workload_without_a_choice_is_untuned(install: Install) -> None:
    tuned_nothing(BEST, LAST, install=install)
    assert missed() == [Missed.UNTUNED]


def test_the_reference_that_serves_for_want_of_another_is_a_fallback(install: Install) -> None:
    tuned_nothing(LAST, install=install)
    assert missed() == [Missed.FALLBACK]


def test_a_choice_that_no_longer_holds_is_stale_and_says_why(install: Install, store: Callable[[Choice], None]) -> None:
    install(BEST, LAST)
    store(make_choice(BEST, ASKED, identity("cpu"), source_hash="old"))
    assert missed() == [Missed.STALE]
    assert "fake.best: stored choice, stale: the kernel's source has changed" in misses.met()[0].reason


def test_a_choice_that_holds_is_no_miss(install: Install, store: Callable[[Choice], None]) -> None:
    install(BEST, LAST)
    store(make_choice(BEST, ASKED, identity("cpu")))
    assert missed() == [None] and misses.met() == ()


def test_neither_a_pin_nor_a_process_without_a_store_misses_anything(install: Install) -> None:
    install(BEST, LAST)
    assert missed() == [None]
    tuned_nothing(BEST, LAST, install=install)
    with kernelyard.use(scale="fake.last"):
        assert missed() == [None, None]


def test_the_first_miss_of_a_process_is_said_at_the_caller_with_the_command_and_the_next_is_not(install: Install) -> None:
    tuned_nothing(BEST, LAST, install=install)
    with pytest.warns(RuntimeWarning) as caught:
        kernelyard.ops.scale(X)
        kernelyard.ops.scale(torch.ones(3, 4))
    (told,) = caught
    assert "scale on 2x4 fp32 has no tuned choice; fake.best serves" in str(told.message) and told.filename == __file__
    assert "Run `kernelyard tune scale --shape 2x4 --dtype float32 --device cpu`" in str(told.message)
    assert [one.workload for one in misses.met()] == ["2x4 fp32", "3x4 fp32"]


def test_a_shape_that_words_cannot_say_is_to_be_captured(install: Install) -> None:
    tuned_nothing(BEST, LAST, install=install)
    with pytest.warns(RuntimeWarning, match=r"Run your model inside `kernelyard.capture` and tune the file"):
        kernelyard.ops.scale(torch.ones(5, 24)[:, 4:12])


def test_workloads_past_the_most_are_not_remembered(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(misses, "MOST", 2)
    tuned_nothing(BEST, LAST, install=install)
    with pytest.warns(RuntimeWarning):
        for rows in (2, 3, 4):
            kernelyard.ops.scale(torch.ones(rows, 4))
    assert len(misses.met()) == 2


def test_what_was_met_is_handed_over_once(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Miss] = []
    monkeypatch.setattr(misses, "_keeper", given.extend)
    tuned_nothing(BEST, LAST, install=install)
    missed()
    misses.hand_over()
    misses.hand_over()
    assert [(one.op, one.kernel, one.missed) for one in given] == [("scale", "fake.best", Missed.UNTUNED)]


CODE = "import torch, kernelyard; print(kernelyard.ops.vector_add(torch.ones(4), torch.ones(4)).sum().item())"
"""The reference serves it where nothing is tuned: nothing is built."""


def test_a_process_that_ends_leaves_its_misses_in_the_home(home: Path) -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    assert "vector_add on 4 fp32" in done.stderr
    assert [(one.miss.op, one.miss.workload, one.processes) for one in listed()] == [("vector_add", "4 fp32", 1)]


def test_a_home_that_cannot_be_written_takes_no_result_away(home: Path) -> None:
    home.write_text("a file, and no folder")
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    assert done.stdout == "8.0\n" and "Traceback" not in done.stderr
    assert "the misses of this process could not be kept" in done.stderr


def test_selections_are_a_table_with_the_reason_and_the_calls_of_captures(install: Install, tmp_path: Path) -> None:
    tuned_nothing(BEST, LAST, install=install)
    assert str(kernelyard.selections()) == "No op of kernelyard was called in this process."
    missed()
    with kernelyard.capture(tmp_path / "model"):
        missed(), missed()
        assert kernelyard.selections()[0].calls == 2, "also while it is open, and however often it is looked at"
        assert kernelyard.selections()[0].calls == 2
    head, row = str(kernelyard.selections()).splitlines()
    assert head.split() == ["op", "workload", "device", "kernel", "calls", "missed", "because"]
    assert row == "scale  2x4 fp32  cpu     fake.best  2      untuned  not tuned"
