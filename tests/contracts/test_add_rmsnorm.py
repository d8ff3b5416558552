"""add_rmsnorm: the norm of the sum as it was rounded, both results, their tolerances."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional as F

from kernelyard.contracts import ADD_RMSNORM
from kernelyard.errors import InvalidInput
from kernelyard.registry.matrix import Point
from tests.contracts.cases import HALF, gradcheck, inputs, typical, wide, within


def test_the_reference_is_torch_s_norm_of_the_sum_in_float64() -> None:
    x, residual, w, eps, *rest = wide(typical(ADD_RMSNORM, 5, 33))
    y, r = ADD_RMSNORM.reference(x, residual, w, eps, *rest)
    torch.testing.assert_close(r, x + residual, rtol=0, atol=0)
    torch.testing.assert_close(y, F.rms_norm(r, (33,), w, eps))


@pytest.mark.parametrize("statics", [(), (("casting", "llama"),), (("offset", 1.0),)], ids=str)
def test_the_reference_has_the_derivative_of_its_differences(statics: Any) -> None:
    assert gradcheck(ADD_RMSNORM, typical(ADD_RMSNORM, 3, 7, statics=statics), ("x", "residual", "w"))


def rounded(args: tuple[Any, ...], normed: bool = True) -> tuple[torch.Tensor, torch.Tensor]:
    """By torch: the sum rounded, and the norm of that, or of what was not rounded yet."""
    x, residual, w, eps, *_ = args
    exact = x.float() + residual.float()
    r = exact.to(x.dtype)
    return F.rms_norm(r.float() if normed else exact, (x.shape[-1],), w.float(), eps).to(x.dtype), r


@pytest.mark.parametrize("dtype", ["float32", *HALF])
def test_torch_s_own_result_is_within_the_tolerance(dtype: str) -> None:
    for dims in ((1, 1), (33, 2), (7, 129), (33, 1000), (3, 32768)):
        workload = ADD_RMSNORM.workload(Point(dims, dtype))
        for seed in (0, 1):
            args = inputs(ADD_RMSNORM, workload, seed)
            assert within(ADD_RMSNORM, workload, rounded(args), args), (dims, seed)


def test_the_sum_is_rounded_once_and_a_sum_rounded_twice_is_outside_its_tolerance() -> None:
    workload = ADD_RMSNORM.workload(Point((33, 1000), "float16"))
    args = inputs(ADD_RMSNORM, workload)
    y, r = rounded(args)
    assert within(ADD_RMSNORM, workload, (y, r), args)
    assert not within(ADD_RMSNORM, workload, (y, (args[0].bfloat16() + args[1].bfloat16()).half()), args)


@pytest.mark.parametrize("index", [0, 1])
def test_a_result_that_forgets_the_residual_is_outside_the_tolerance(index: int) -> None:
    workload = ADD_RMSNORM.workload(Point((7, 129), "bfloat16"))
    args = inputs(ADD_RMSNORM, workload)
    right, forgotten = rounded(args), rounded((args[0], torch.zeros_like(args[1]), *args[2:]))
    mixed = tuple(forgotten[i] if i == index else right[i] for i in range(2))
    assert not within(ADD_RMSNORM, workload, mixed, args)


def test_either_result_may_be_written_over_either_addend() -> None:
    assert set(ADD_RMSNORM.in_place) == {(output, name) for output in (0, 1) for name in ("x", "residual")}


@pytest.mark.parametrize(
    ("residual", "told"),
    [
        (torch.ones(4), r"residual has shape \(4,\), x has \(2, 4\). Give equal shapes; nothing is broadcast"),
        (torch.ones(2, 4).half(), "residual is torch.float16, x is torch.float32"),
        (torch.ones(2, 4, device="meta"), "residual is on meta, x on cpu"),
    ],
)
def test_a_residual_that_is_not_like_x_is_refused_by_name(residual: torch.Tensor, told: str) -> None:
    with pytest.raises(InvalidInput, match=f"add_rmsnorm: {told}"):
        ADD_RMSNORM.check((torch.ones(2, 4), residual, None, 1e-6, 0.0, "fp32"))


def test_the_cost_is_two_reads_and_two_writes_and_the_weight() -> None:
    assert ADD_RMSNORM.cost(ADD_RMSNORM.workload(Point((16, 64), "bfloat16"))).bytes == 4 * 16 * 64 * 2 + 64 * 2
