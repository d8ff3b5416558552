"""What the checker's own parts raise is an error that says so: never a pass, and never held against the kernel."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from kernelyard.contracts.rmsnorm import RMSNORM
from kernelyard.registry import registry
from kernelyard.registry.backend import Executable
from kernelyard.registry.kernel import Kernel, Support
from kernelyard.registry.op import Matrix, Op, Point
from kernelyard.registry.spec import Status
from kernelyard.verify import compare, jobs
from kernelyard.verify.check import check_kernel
from kernelyard.verify.isolation import Worker
from kernelyard.verify.oracle import check_workload
from kernelyard.verify.outcome import CaseResult, CheckerFailed
from tests.wrong_kernels.catalogue import rmsnorm

CPU = torch.device("cpu")
KERNEL = Kernel("torch.test", "rmsnorm", "torch", "for a test", "none:none", Support(("cpu",), RMSNORM.dtypes))
POINT = Point((7, 129), "float32")


def broken(*args: Any) -> Any:
    raise ZeroDivisionError("a slip in the contract")


def check(op: Op = RMSNORM, call: Callable[..., Any] = rmsnorm) -> CaseResult:
    return check_workload(op, KERNEL, Executable(call), op.workload(POINT), device=CPU)


@pytest.mark.parametrize(
    ("part", "words"),
    [
        ("reference", "the reference of rmsnorm raised ZeroDivisionError: a slip in the contract"),
        ("inputs", "the input maker of rmsnorm raised"),
        ("tolerance", "the tolerance of rmsnorm raised"),
        ("empty", "raised ZeroDivisionError: a slip in the contract"),
    ],
)
def test_a_part_of_the_contract_that_raises_is_the_checkers_failure(part: str, words: str) -> None:
    with pytest.raises(CheckerFailed, match="the checker failed, not the kernel: ") as caught:
        check(replace(RMSNORM, **{part: broken}))
    assert words in str(caught.value) and "Nothing is known about the kernel" in str(caught.value)


def test_an_oracle_that_raises_is_the_checkers_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare, "errors", broken)
    with pytest.raises(CheckerFailed, match="the oracle itself raised ZeroDivisionError"):
        check()


def test_plain_torch_that_raises_is_the_checkers_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernelyard.plugins.eager.rmsnorm.rms_norm", broken)
    with pytest.raises(CheckerFailed, match=r"torch.eager, which rmsnorm is compared with, raised ZeroDivisionError"):
        check()


def test_a_kernel_that_raises_is_still_the_kernels_fault() -> None:
    result = check(call=broken)
    assert result.status is Status.CRASHED and result.reason == "raised ZeroDivisionError: a slip in the contract"


def test_a_whole_check_ends_with_the_checkers_failure_too() -> None:
    with pytest.raises(CheckerFailed, match="the reference of rmsnorm"):
        matrix = Matrix("test", "rmsnorm", (POINT,))
        check_kernel(replace(RMSNORM, reference=broken), KERNEL, matrix, "cpu", build=lambda *_: Executable(rmsnorm))


def test_global_state_is_put_back_after_the_checkers_failure() -> None:
    def meddling(*args: Any) -> Any:
        torch.set_default_dtype(torch.float64)
        raise ZeroDivisionError

    with pytest.raises(CheckerFailed):
        check(replace(RMSNORM, reference=meddling))
    assert torch.get_default_dtype() == torch.float32


def test_a_report_from_a_worker_whose_checker_failed_is_not_ok_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNELYARD_EXTRA_PLUGINS", "tests.verify.slips:plugin")
    eager = registry.current().kernel("rmsnorm", "torch.eager")
    slipping = replace(RMSNORM, name="slipping", matrices={"correctness": (POINT,)})
    with Worker() as worker:
        kernel = replace(eager, op="slipping")
        report = jobs.check_isolated(worker, slipping, kernel, slipping.matrix("correctness", "cpu"), "cpu", timeout_s=100)
    assert not report.ok
    assert "the checker failed, not the kernel: the reference of slipping raised" in report.failures[0].reason
