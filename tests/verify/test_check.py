"""Checking a kernel over a matrix: what is covered, what is left out, and what can't be checked is never ok."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from kernelyard.contracts.rmsnorm import RMSNORM
from kernelyard.errors import BuildFailed, Unsupported
from kernelyard.registry import registry
from kernelyard.registry.backend import Executable
from kernelyard.registry.kernel import Kernel, Support
from kernelyard.registry.op import Matrix, Point
from kernelyard.registry.spec import Status
from kernelyard.verify import jobs
from kernelyard.verify.check import cases_of, check_kernel, supported
from kernelyard.verify.isolation import Worker
from kernelyard.verify.outcome import CheckReport, report_from

MATRIX = Matrix("test", "rmsnorm", tuple(Point((rows, 129), dtype) for rows in (0, 1, 7) for dtype in ("float32", "bfloat16")))


def kernel(**support) -> Kernel:
    envelope = {"devices": ("cpu",), "dtypes": ("float32", "bfloat16"), **support}
    return Kernel("torch.test", "rmsnorm", "torch", "for a test", "none:none", Support(**envelope))


def right(*args) -> torch.Tensor:
    wide = (a.float() if isinstance(a, torch.Tensor) else a for a in args)
    return RMSNORM.reference(*wide).to(args[0].dtype).contiguous()


def check(a_kernel: Kernel, call=right, **options) -> CheckReport:
    return check_kernel(RMSNORM, a_kernel, MATRIX, "cpu", build=lambda *_: Executable(call), **options)


def test_right_kernel_is_ok_at_every_point_and_edge() -> None:
    report = check(kernel())
    edges = {"small", "last", *RMSNORM.edges}
    assert report.ok and report.failures == () and report.unsupported == 0
    assert report.cases == len(MATRIX.points) + 2 * len(edges) + 1
    assert 0 < report.max_ulp < 4


def test_points_outside_the_declared_support_are_counted_with_their_reason_and_are_no_failure() -> None:
    report = check(kernel(dtypes=("float32",), most={"rows": 1}))
    assert report.ok
    assert report.unsupported == 4
    assert report.refusals == {"supports float32, not bfloat16": 3, "rows is 7, the most is 1": 1}


def test_kernel_with_no_point_inside_its_support_is_not_ok() -> None:
    report = check(kernel(least={"rows": 99}))
    assert not report.ok and report.cases == 0
    assert "no point of the matrix is inside its declared support: rows is 0, the least is 99" in report.reason


def test_kernel_that_can_not_run_here_is_not_ok_and_says_why() -> None:
    cuda = next(k for k in registry.current().kernels("rmsnorm") if k.support.devices == ("cpu",))
    report = check_kernel(RMSNORM, cuda, MATRIX, "cuda")
    assert not report.ok and report.cases == 0 and report.reason


@pytest.mark.parametrize(
    ("error", "status", "words"),
    [
        (BuildFailed("no compiler"), Status.BUILD_FAILED, "no compiler"),
        (Unsupported("no AVX-512"), Status.UNSUPPORTED, "declares support for this workload, then refuses: no AVX-512"),
        (ZeroDivisionError("cols // 0"), Status.CRASHED, "building it raised ZeroDivisionError: cols // 0"),
    ],
)
def test_failure_to_build_is_a_failure_of_each_case(error: Exception, status: Status, words: str) -> None:
    def build(*_) -> Executable:
        raise error

    report = check_kernel(RMSNORM, kernel(), MATRIX, "cpu", build=build)
    assert {(failure.status, failure.reason) for failure in report.failures} == {(status, words)}


def test_limit_spreads_points_over_the_matrix() -> None:
    report = check(kernel(), limit=3)
    assert report.ok
    seen: list[str] = []
    check(kernel(), limit=3, progress=lambda done, total, result: seen.append(result.case))
    assert seen[:3] == ["0x129 fp32 random", "1x129 fp32 random", "7x129 fp32 random"]


def test_edges_go_to_a_ragged_point_and_an_even_one_of_each_dtype() -> None:
    workloads, _ = supported(RMSNORM, kernel(), RMSNORM.matrix("correctness", "cpu"), "cpu")
    edged = {(c.workload.dim("cols") % 8 != 0, c.workload.dtype) for c in cases_of(RMSNORM, workloads) if c.edge == "nan"}
    assert edged == {(ragged, dtype) for ragged in (True, False) for dtype in ("float32", "bfloat16")}


def test_report_survives_json_as_a_dict() -> None:
    report = check(kernel(), call=lambda *args: right(*args) * 2)
    assert report.failures and report_from(report.as_dict()) == report


def test_matrix_survives_json_as_a_dict() -> None:
    matrix = replace(RMSNORM.matrix("smoke", "cpu"), name="mine")
    assert jobs.matrix_from(RMSNORM, jobs.matrix_payload(matrix), "cpu") == matrix


def test_check_in_a_worker_gives_the_same_verdict_as_here() -> None:
    eager = registry.current().kernel("rmsnorm", "torch.eager")
    here = check_kernel(RMSNORM, eager, MATRIX, "cpu", limit=2)
    with Worker() as worker:
        there = jobs.check_isolated(worker, RMSNORM, eager, MATRIX, "cpu", limit=2, timeout_s=100)
    assert there.ok and replace(there, seconds=0.0) == replace(here, seconds=0.0)


def test_check_that_outlasts_its_limit_is_a_failure() -> None:
    eager = registry.current().kernel("rmsnorm", "torch.eager")
    with Worker() as worker:
        report = jobs.check_isolated(worker, RMSNORM, eager, RMSNORM.matrix("correctness", "cpu"), "cpu", timeout_s=0.05)
    assert not report.ok and report.failures[0].status is Status.TIMED_OUT
