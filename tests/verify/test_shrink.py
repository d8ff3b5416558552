"""A failure is shrunk to no more than it needs, stays the same failure, and is proved by a script that is right once the fault is gone."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from kernelyard.registry import registry
from kernelyard.registry.op import Point
from kernelyard.registry.spec import Status
from kernelyard.verify import shrink as module
from kernelyard.verify.isolation import Worker
from kernelyard.verify.journal import Where
from kernelyard.verify.reproduce import Reproduction, reproduce
from kernelyard.verify.shrink import shrink
from kernelyard.verify.tries import Subject, same_fault
from tests.devices import on_each_device

PLUGIN = "tests.wrong_kernels.planted:plugin"
FOUND = Where(Point((33, 129), "bfloat16", "row_strided"), "random", {}, 0)


pytestmark = pytest.mark.usefixtures("planted")


def subject(name: str, device: str = "cpu") -> Subject:
    table = registry.current()
    return Subject(table.op("rmsnorm"), table.kernel("rmsnorm", f"planted.{name}"), device, FOUND, Status.WRONG)


@on_each_device
@pytest.mark.parametrize(
    ("name", "dims", "values"),
    [
        ("mask_off_by_one", (1, 1), {"x": "ones", "w": "ones"}),
        ("store_out_of_bounds", (1, 5), {"x": "zeros", "w": "zeros"}),
    ],
)
def test_planted_fault_becomes_a_short_script_that_fails_until_the_fault_is_gone(
    name: str, dims: tuple[int, ...], values: dict[str, str], device: str, worker: Worker, tmp_path: Path
) -> None:
    shrunk = shrink(subject(name, device), worker)
    assert shrunk is not None
    assert shrunk.subject.where == Where(Point(dims, "float32"), "random", {}, 0) and shrunk.subject.values == values
    made = reproduce(shrunk, tmp_path / "fault.py")
    assert made.proved and made.fallback_right and made.lines < 30, made.output
    assert "planted.py" in made.text and "x = torch." in made.text
    assert fixed(made) == 0


def fixed(made: Reproduction) -> int:
    """The exit code of the script against the fix."""
    environment = {**os.environ, "PLANTED_FIXED": "1", "PYTHONPATH": os.pathsep.join([os.getcwd(), *sys.path])}
    done = subprocess.run([sys.executable, str(made.path)], env=environment, capture_output=True, text=True, check=False, cwd="/")
    assert done.stdout == "right\n", done.stderr
    return done.returncode


def test_a_failure_that_no_longer_shows_is_none(worker: Worker) -> None:
    assert shrink(subject("too_narrow"), worker) is None


def test_what_lies_outside_of_the_declared_support_does_not_count(worker: Worker) -> None:
    narrow = subject("mask_off_by_one")
    kernel = replace(narrow.kernel, support=replace(narrow.kernel.support, least={"cols": 7}, dtypes=("bfloat16",)))
    shrunk = shrink(replace(narrow, kernel=kernel), worker)
    assert shrunk is not None
    assert shrunk.subject.where.point == Point((1, 7), "bfloat16")


def test_out_of_time_the_failure_is_kept_as_it_was(worker: Worker) -> None:
    shrunk = shrink(subject("mask_off_by_one"), worker, budget_s=0.0)
    assert shrunk is not None
    assert shrunk.subject.where == FOUND


def test_without_hypothesis_the_extra_is_named(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "installed", lambda name: False)
    with pytest.raises(Exception, match=r"Install kernelyard\[repro\]"):
        shrink(subject("mask_off_by_one"), worker)


def test_a_fault_stays_of_its_kind_and_of_its_run() -> None:
    store = "a store out of bounds: 1 element past its end; 3 of 9 elements differ"
    assert same_fault("a store out of bounds: 2 elements past its end", store)
    assert not same_fault("input x was changed", store)
    assert not same_fault("with other data at the same addresses: 1 of 1 elements differ", "1 of 9 elements differ")
    assert same_fault("segmentation fault (SIGSEGV)", "segmentation fault (SIGSEGV)")
