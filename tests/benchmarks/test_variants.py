"""benchmarks/variants.py: what a neighbourhood is, and one measurement of it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks import variants
from kernelyard.contracts.vector_add import VECTOR_ADD
from kernelyard.registry import registry
from kernelyard.registry.matrix import Point


def test_a_neighbourhood_is_the_default_and_every_config_one_parameter_away() -> None:
    workload = VECTOR_ADD.workload(Point((4096,), "float32"), "cuda")
    kernel = registry.current().kernel("vector_add", "triton.stream")
    default, *others = variants.around(kernel, workload)
    assert default == kernel.space.default_for(workload)
    assert others and all(kernel.space.allows(config, workload) for config in others)
    assert {sum(config[name] != default[name] for name in default) for config in others} == {1}


def test_the_default_and_its_neighbours_are_checked_and_timed_together(measured_home: Path) -> None:
    workload = VECTOR_ADD.workload(Point((512,), "float32"))
    rows = variants.measured(VECTOR_ADD, [workload], ["torch.eager"], 0.1)
    assert [(row["kernel"], row["is_default"], row["reason"]) for row in rows] == [("torch.eager", True, "")]
    assert rows[0]["device_time_us"] >= 0 and "torch.eager (default)" in variants.table(rows)


def test_an_op_that_does_not_exist_is_refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["variants.py", "no_such", "--device", "cpu"])
    assert variants.main() == 2 and "no_such" in capsys.readouterr().err
