"""The gradients of both norms: their formulas against autograd through the forward references, and sums over rows in any order."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from kernelyard import ops
from kernelyard.contracts import ADD_RMSNORM, ADD_RMSNORM_BACKWARD, RMSNORM, RMSNORM_BACKWARD
from kernelyard.errors import InvalidInput
from kernelyard.registry.matrix import Point
from kernelyard.registry.spec import TensorSpec
from tests.contracts.cases import derivative, inputs, plain_torch, typical, wide, within

MEANINGS = pytest.mark.parametrize(("casting", "offset"), [("fp32", 0.0), ("fp32", 1.0), ("llama", 0.0)])


@MEANINGS
def test_the_reference_is_autograd_s_through_rmsnorm_s(casting: str, offset: float) -> None:
    dy, x, w, eps, *_ = wide(typical(RMSNORM_BACKWARD, 5, 33))
    expected = derivative(lambda x, w: RMSNORM.reference(x, w, eps, offset, casting), (x, w), (dy,))
    torch.testing.assert_close(RMSNORM_BACKWARD.reference(dy, x, w, eps, offset, casting), expected)


@MEANINGS
def test_the_reference_with_a_residual_is_autograd_s_through_add_rmsnorm_s(casting: str, offset: float) -> None:
    dy, dr, r, w, eps, *_ = wide(typical(ADD_RMSNORM_BACKWARD, 5, 33))
    residual = torch.randn_like(r)
    dx, dresidual, dw = derivative(
        lambda x, residual, w: ADD_RMSNORM.reference(x, residual, w, eps, offset, casting), (r - residual, residual, w), (dy, dr)
    )
    torch.testing.assert_close(dx, dresidual)
    torch.testing.assert_close(ADD_RMSNORM_BACKWARD.reference(dy, dr, r, w, eps, offset, casting), (dx, dw))


def test_without_a_gradient_of_the_sum_nothing_is_added() -> None:
    dy, _, r, w, *rest = wide(typical(ADD_RMSNORM_BACKWARD, 5, 33))
    torch.testing.assert_close(ADD_RMSNORM_BACKWARD.reference(dy, None, r, w, *rest), RMSNORM_BACKWARD.reference(dy, r, w, *rest))


@pytest.mark.parametrize("rows", [0, 5])
def test_without_a_weight_its_gradient_is_an_empty_tensor_of_x_s_dtype(rows: int) -> None:
    dy, x, _, *rest = typical(RMSNORM_BACKWARD, rows, 8, "bfloat16")
    for dw in (RMSNORM_BACKWARD.empty(dy, x, None, *rest)[1], RMSNORM_BACKWARD.reference(dy, x, None, *rest)[1]):
        assert dw.shape == (0,) and dw.dtype == torch.bfloat16


@pytest.mark.parametrize("shape", [(16,), (2, 3, 16), (4, 0)], ids=str)
def test_any_number_of_leading_dimensions_are_rows(shape: tuple[int, ...]) -> None:
    dy, x, w = torch.randn(shape).double(), torch.randn(shape).double(), torch.randn(shape[-1]).double()
    dx, dw = RMSNORM_BACKWARD.reference(dy, x, w, 0.1, 0.0, "fp32")
    expected = derivative(lambda x, w: RMSNORM.reference(x, w, 0.1, 0.0, "fp32"), (x, w), (dy,))
    torch.testing.assert_close((dx, dw), expected)


# Autograd ---------------------------------------------------------------------------------------------


@MEANINGS
@pytest.mark.parametrize("weighted", [True, False])
def test_autograd_through_rmsnorm_gives_the_reference_s(casting: str, offset: float, weighted: bool) -> None:
    dy, x, w, eps, *_ = typical(RMSNORM_BACKWARD, 5, 33)
    tensors = (x, w) if weighted else (x,)
    with plain_torch():
        got = derivative(lambda x, w=None: ops.rmsnorm(x, w, eps, offset=offset, casting=casting), tensors, (dy,))
    expected = RMSNORM_BACKWARD.reference(*wide((dy, x, w if weighted else None, eps, offset, casting)))
    torch.testing.assert_close(got, expected[: len(tensors)], check_dtype=False, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("used", ["both", "the norm", "the sum"])
def test_autograd_through_add_rmsnorm_gives_the_reference_s_whichever_result_is_used(used: str) -> None:
    _, x, w, eps, *rest = typical(RMSNORM_BACKWARD, 5, 33)
    residual = torch.randn_like(x)
    picked = {"both": slice(0, 2), "the norm": slice(0, 1), "the sum": slice(1, 2)}[used]
    leaves = [t.clone().requires_grad_() for t in (x, residual, w)]
    exact = [t.double().requires_grad_() for t in (x, residual, w)]
    grads = [torch.randn_like(x), torch.randn_like(x)][picked]
    with plain_torch():
        got = torch.autograd.grad(ops.add_rmsnorm(*leaves, eps)[picked], leaves, grads, allow_unused=True)
    expected = torch.autograd.grad(ADD_RMSNORM.reference(*exact, eps, *rest)[picked], exact, [g.double() for g in grads], allow_unused=True)
    torch.testing.assert_close(got[:2], expected[:2], check_dtype=False, rtol=1e-5, atol=1e-5)
    assert (got[2] is None) == (expected[2] is None) == (used == "the sum")
    if expected[2] is not None:
        torch.testing.assert_close(got[2], expected[2], check_dtype=False, rtol=1e-5, atol=1e-5)


def test_a_gradient_of_a_result_that_nothing_was_made_of_is_not_passed_as_zeros(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    monkeypatch.setattr("kernelyard.registry.operator.operator", lambda name: lambda *args, **more: seen.append(args) or (args[0], args[3]))
    assert ADD_RMSNORM.gradient is not None
    x, w = torch.randn(3, 8, requires_grad=True), torch.randn(8)
    with plain_torch():
        y, _ = ops.add_rmsnorm(x, torch.randn(3, 8), w)
        torch.autograd.grad(y.sum(), x)
    assert seen[0][1] is None


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_gradients_in_half_dtypes_are_of_x_s_and_the_weight_s_dtype(dtype: torch.dtype) -> None:
    dy, x, w, eps, *_ = typical(RMSNORM_BACKWARD, 64, 128, str(dtype).removeprefix("torch."))
    with plain_torch():
        dx, dw = derivative(lambda x, w: ops.rmsnorm(x, w, eps), (x, w.float()), (dy,))
    assert dx.dtype == dtype and dw.dtype == torch.float32
    exact_dx, exact_dw = RMSNORM_BACKWARD.reference(*wide((dy, x, w)), eps, 0.0, "fp32")
    torch.testing.assert_close(dx.double(), exact_dx, rtol=torch.finfo(dtype).eps, atol=1e-5)
    torch.testing.assert_close(dw.double(), exact_dw, rtol=1e-5, atol=1e-5)


def test_a_second_derivative_is_refused_by_name() -> None:
    x = torch.randn(3, 8, requires_grad=True)
    with plain_torch():
        (dx,) = torch.autograd.grad(ops.rmsnorm(x).sum(), x, create_graph=True)
        with pytest.raises(InvalidInput, match="rmsnorm_backward has no gradient"):
            dx.sum().backward()


# Tolerances -------------------------------------------------------------------------------------------


def by_formula(dy: Any, x: Any, w: Any, eps: float, add: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """dx and dw in float32, the rows summed by `add`."""
    dy, x, w = dy.float(), x.float(), w.float()
    rstd = torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
    scaled, normal = dy * w, x * rstd
    return rstd * (scaled - normal * (scaled * normal).mean(-1, keepdim=True)), add(dy * normal)


def one_after_the_other(terms: torch.Tensor) -> torch.Tensor:
    total = np.zeros(terms.shape[1], dtype=np.float32)
    for row in terms.numpy():
        total += row
    return torch.from_numpy(total)


def in_half(terms: torch.Tensor) -> torch.Tensor:
    total = torch.zeros(terms.shape[1], dtype=torch.bfloat16)
    for row in terms:
        total += row.bfloat16()
    return total


@pytest.mark.parametrize("rows", [129, 4096])
def test_rows_summed_in_any_order_are_within_the_tolerance_and_summed_in_half_are_not(rows: int) -> None:
    workload = RMSNORM_BACKWARD.workload(Point((rows, 128), "float32"))
    dy, x, w, eps, *_ = args = inputs(RMSNORM_BACKWARD, workload)
    for add in (lambda terms: terms.sum(0), one_after_the_other):
        assert within(RMSNORM_BACKWARD, workload, by_formula(dy, x, w, eps, add), args)
    half = RMSNORM_BACKWARD.workload(Point((rows, 128), "bfloat16"))
    dy, x, w, eps, *_ = args = inputs(RMSNORM_BACKWARD, half)
    dx, dw = by_formula(dy, x, w, eps, lambda terms: terms.sum(0))
    assert within(RMSNORM_BACKWARD, half, (dx.bfloat16(), dw.bfloat16()), args)
    assert not within(RMSNORM_BACKWARD, half, (dx.bfloat16(), by_formula(dy, x, w, eps, in_half)[1]), args)


WRONG = {
    "eps left out": lambda dy, x, w, eps: by_formula(dy, x, w, 0.0, lambda terms: terms.sum(0)),
    "the weight ignored": lambda dy, x, w, eps: by_formula(dy, x, torch.ones_like(w), eps, lambda terms: terms.sum(0)),
    "a row left out": lambda dy, x, w, eps: by_formula(dy, x, w, eps, lambda terms: terms[:-1].sum(0)),
    "the mean left out": lambda dy, x, w, eps: (
        (dy * w).float() * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + eps),
        by_formula(dy, x, w, eps, lambda terms: terms.sum(0))[1],
    ),
}


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_gradient_that_is_wrong_is_outside_the_tolerance(wrong: str, dtype: str) -> None:
    workload = RMSNORM_BACKWARD.workload(Point((33, 129), dtype))
    dy, x, w, eps, *_ = args = inputs(RMSNORM_BACKWARD, workload)
    dx, dw = WRONG[wrong](dy, x, w, eps)
    assert not within(RMSNORM_BACKWARD, workload, (dx.to(x.dtype), dw.to(w.dtype)), args)


def test_the_weight_s_gradient_is_measured_by_its_own_dtype_and_by_the_rows() -> None:
    workload = RMSNORM_BACKWARD.workload(Point((1000, 64), "float32"))
    tensors = tuple((name, TensorSpec((64,), "bfloat16") if name == "w" else spec) for name, spec in workload.tensors)
    mixed = RMSNORM_BACKWARD.tolerance(replace(workload, tensors=tensors))
    assert mixed.relative < 1e-5 < 2.0**-8 < mixed.of(1).relative
    short = RMSNORM_BACKWARD.tolerance(RMSNORM_BACKWARD.workload(Point((2, 64), "float32")))
    assert short.of(1).absolute < mixed.of(1).absolute and short.absolute == mixed.absolute


# What is refused --------------------------------------------------------------------------------------

X, W = torch.ones(2, 4), torch.ones(4)


@pytest.mark.parametrize(
    ("args", "told"),
    [
        ((torch.ones(4), X, W, 0.1, 0.0, "fp32"), r"dy has shape \(4,\), x has \(2, 4\)"),
        ((X.half(), X, W, 0.1, 0.0, "fp32"), "dy is torch.float16, x is torch.float32"),
        ((X.to("meta"), X, W, 0.1, 0.0, "fp32"), "dy is on meta, x on cpu"),
        ((X, X, torch.ones(5), 0.1, 0.0, "fp32"), r"w has shape \(5,\), x has 4 columns"),
        ((X, X, W, -0.1, 0.0, "fp32"), "eps is -0.1"),
        ((X, X, W, 0.1, 0.0, "gemma"), "casting is 'gemma'"),
        ((torch.ones(()), torch.ones(()), None, 0.1, 0.0, "fp32"), "x has no dimensions"),
    ],
)
def test_what_is_undefined_is_refused_by_name(args: tuple[Any, ...], told: str) -> None:
    with pytest.raises(InvalidInput, match=f"rmsnorm_backward: {told}"):
        RMSNORM_BACKWARD.check(args)
    with pytest.raises(InvalidInput, match="add_rmsnorm_backward: " + told.replace("x ", "r ")):
        ADD_RMSNORM_BACKWARD.check((args[0], None, *args[1:]))


def test_a_gradient_of_the_sum_of_another_shape_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"dr has shape \(4,\), r has \(2, 4\)"):
        ADD_RMSNORM_BACKWARD.check((X, torch.ones(4), X, W, 0.1, 0.0, "fp32"))


@pytest.mark.parametrize(
    ("op", "bytes_moved"),
    [(RMSNORM_BACKWARD, 3 * 16 * 64 * 2 + 2 * 64 * 2), (ADD_RMSNORM_BACKWARD, 4 * 16 * 64 * 2 + 2 * 64 * 2)],
    ids=lambda value: getattr(value, "name", ""),
)
def test_the_cost_is_what_must_move(op: Any, bytes_moved: int) -> None:
    assert op.cost(op.workload(Point((16, 64), "bfloat16"))).bytes == bytes_moved
