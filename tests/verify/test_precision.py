"""A kernel's error beside that of plain torch: both are reported, and what no rounding explains is wrong."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from kernelyard.contracts.rmsnorm import RMSNORM
from kernelyard.registry import registry
from kernelyard.registry.backend import Executable
from kernelyard.registry.kernel import Kernel, Support
from kernelyard.registry.op import Op, Point
from kernelyard.registry.spec import Status, Tolerance
from kernelyard.verify import precision
from kernelyard.verify.check import check_kernel
from kernelyard.verify.compare import Errors
from kernelyard.verify.oracle import check_workload
from kernelyard.verify.outcome import CaseResult
from tests.wrong_kernels.catalogue import LOOSE, rmsnorm

KERNEL = Kernel("torch.test", "rmsnorm", "torch", "for a test", "none:none", Support(("cpu",), RMSNORM.dtypes))
HALF = 2.0**-11
ONE_ROUNDING = Tolerance(1.01 * HALF, 0.0, "one rounding", 1)


def check(call=rmsnorm, op: Op = RMSNORM, edge: str = "random") -> CaseResult:
    return check_workload(op, KERNEL, Executable(call), op.workload(Point((7, 129), "bfloat16")), device=torch.device("cpu"), edge=edge)


def judged(kernel: float, eager: float, n: int = 1 << 14, tolerance: Tolerance = ONE_ROUNDING) -> str:
    got = torch.ones(n, dtype=torch.float16)
    return precision.far_above(RMSNORM, Errors(norm=kernel), Errors(norm=eager), got, torch.ones(n), tolerance)


def test_a_result_carries_its_own_errors_and_those_of_plain_torch() -> None:
    result = check()
    assert result.ok and 0 < result.max_ulp < 1 and 0 < result.norm < 2.0**-8
    assert result.eager_ulp is not None and 0 < result.eager_ulp < 1
    assert result.eager_norm == pytest.approx(result.norm, rel=0.1), "both round once"


def test_errors_of_edge_values_stand_beside_nothing() -> None:
    assert check(edge="denormal").eager_norm is None


def test_a_report_carries_the_largest_of_its_cases() -> None:
    kernel = registry.current().kernel("rmsnorm", "torch.eager")
    report = check_kernel(RMSNORM, kernel, RMSNORM.matrix("smoke", "cpu"), "cpu", limit=3)
    assert report.ok and report.norm > 0 and report.eager_norm is None, "plain torch is not compared with itself"
    report = check_kernel(RMSNORM, KERNEL, RMSNORM.matrix("smoke", "cpu"), "cpu", limit=9, build=lambda *_: Executable(rmsnorm))
    assert report.ok and report.norm > 0 and report.eager_norm is not None and report.eager_norm > 0


def test_an_error_that_rounding_explains_passes_and_one_that_it_does_not_names_both_figures() -> None:
    assert judged(0.42 * HALF, 0.41 * HALF) == ""
    assert judged(0.58 * HALF, 0.0) == "", "plain torch without an error is luck: one rounding counts at least"
    words = judged(3 * HALF, 0.41 * HALF)
    assert "= 1.46e-03, is 7.3 times that of torch.eager, 2.00e-04" in words and "1 rounding(s) to float16" in words


def test_few_elements_may_stray_further() -> None:
    assert judged(0.9 * HALF, 0.4 * HALF, n=1) == "" and judged(0.9 * HALF, 0.4 * HALF) != ""


def test_roundings_add_as_squares() -> None:
    three = replace(ONE_ROUNDING, relative=3 * HALF, roundings=3)
    assert precision.allowed(HALF, torch.float16, three) == pytest.approx(math.sqrt(3) * HALF)


def test_a_tolerance_wider_than_any_derivation_lets_no_more_through() -> None:
    wide = replace(ONE_ROUNDING, relative=0.1)
    assert precision.allowed(0.42 * HALF, torch.float16, wide) < 0.6 * HALF
    assert judged(3 * HALF, 0.41 * HALF, tolerance=wide)


def test_a_tolerance_that_tells_no_roundings_is_not_judged() -> None:
    assert judged(3 * HALF, 0.41 * HALF, tolerance=replace(ONE_ROUNDING, roundings=0)) == ""


def test_a_bad_plain_torch_loosens_no_tolerance_and_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernelyard.plugins.eager.rmsnorm.rms_norm", lambda x, shape, w, eps: rmsnorm(x, w, eps, 0.0, "fp32") * 1.5)
    assert check().ok
    result = check(lambda *args: rmsnorm(*args) * 1.1)
    assert result.status is Status.WRONG
    assert "torch.eager misses this tolerance too: look at its derivation (1 rounding(s) to bfloat16" in result.reason


def test_a_kernel_is_compared_with_plain_torch_once_a_case(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    real = torch.nn.functional.rms_norm
    monkeypatch.setattr("kernelyard.plugins.eager.rmsnorm.rms_norm", lambda *args: (calls.append(1), real(*args))[1])
    assert check().ok and len(calls) == 1


def test_an_op_without_its_plain_kernel_here_has_no_figures_beside() -> None:
    result = check(op=replace(LOOSE, fallback="torch.absent"))
    assert result.ok and result.eager_norm is None


def test_bits_that_the_contract_lets_inputs_lose_add_as_squares() -> None:
    cut = replace(ONE_ROUNDING, factors=4 * HALF)
    assert precision.allowed(HALF, torch.float16, cut) == pytest.approx(math.sqrt(17) * HALF, rel=1e-3)
