"""rmsnorm_linear and rmsnorm_linear_swiglu: what they mean, what tells a wrong one, what is refused, gradients by registered ops."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional as F

import kernelyard
from kernelyard import ops
from kernelyard.contracts import RMSNORM_LINEAR, RMSNORM_LINEAR_SWIGLU
from kernelyard.errors import InvalidInput
from kernelyard.registry.matrix import GIVEN, Point
from kernelyard.registry.op import Op
from tests.contracts.cases import HALF, derivative, gradcheck, inputs, plain_torch, wide, within

BOTH = pytest.mark.parametrize("op", [RMSNORM_LINEAR, RMSNORM_LINEAR_SWIGLU], ids=lambda op: op.name)
EPS = 1e-5


def given(op: Op, dims: tuple[int, int, int], dtype: str = "float32", **statics: Any) -> tuple[Any, ...]:
    return inputs(op, op.workload(Point(dims, dtype, statics=tuple(statics.items()))))


def as_hugging_face(x: torch.Tensor, norm: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """The factor of LlamaRMSNorm, which rounds twice, and the product in float32."""
    wide = x.float()
    normal = norm * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + EPS)).to(x.dtype)
    return normal.float() @ w.float().T


def test_it_is_torch_s_norm_and_linear_layer_in_float64() -> None:
    x, norm, w, bias, *_ = wide(given(RMSNORM_LINEAR, (3, 5, 7), bias=GIVEN))
    expected = F.linear(F.rms_norm(x, (7,), norm, EPS), w, bias)
    torch.testing.assert_close(RMSNORM_LINEAR.reference(x, norm, w, bias, EPS, False), expected)


def test_gated_it_is_torch_s_norm_and_gated_layers_in_float64() -> None:
    x, norm, w, *_ = wide(given(RMSNORM_LINEAR_SWIGLU, (3, 5, 7)))
    normal = F.rms_norm(x, (7,), norm, EPS)
    expected = F.silu(F.linear(normal, w[:5])) * F.linear(normal, w[5:])
    torch.testing.assert_close(RMSNORM_LINEAR_SWIGLU.reference(x, norm, w, EPS, False), expected)


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("k", [1, 65, 2048])
def test_what_llama_rounds_is_within_the_tolerance(dtype: str, k: int) -> None:
    for seed in (0, 1):
        work = RMSNORM_LINEAR.workload(Point((8, 300, k), dtype))
        x, norm, w, *_ = args = inputs(RMSNORM_LINEAR, work, seed)
        assert within(RMSNORM_LINEAR, work, as_hugging_face(x, norm, w).to(x.dtype), args)
        work = RMSNORM_LINEAR_SWIGLU.workload(Point((8, 150, k), dtype))
        gate, up = as_hugging_face(x, norm, w).chunk(2, -1)
        assert within(RMSNORM_LINEAR_SWIGLU, work, (F.silu(gate) * up).to(x.dtype), (x, norm, w, EPS, False))


WRONG = {
    "norm ignored": lambda x, norm, w: F.rms_norm(x, (x.shape[-1],), None, EPS) @ w.T,
    "another eps": lambda x, norm, w: F.rms_norm(x, (x.shape[-1],), norm, 0.1) @ w.T,
    "not normalised": lambda x, norm, w: (x * norm) @ w.T,
    "a column of x left out": lambda x, norm, w: F.rms_norm(x, (x.shape[-1],), norm, EPS)[:, :-1] @ w[:, :-1].T,
    "factors of three bits less": lambda x, norm, w: (F.rms_norm(x, (x.shape[-1],), norm, EPS).to(torch.float8_e4m3fn).float()) @ w.T,
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=list(WRONG))
def test_one_that_is_wrong_is_outside_the_tolerance(wrong: Any) -> None:
    work = RMSNORM_LINEAR.workload(Point((16, 64, 65), "bfloat16"))
    x, norm, w, *_ = args = inputs(RMSNORM_LINEAR, work)
    assert not within(RMSNORM_LINEAR, work, wrong(x.float(), norm.float(), w.float()).to(x.dtype), args)


@BOTH
def test_constant_weights_change_no_value_and_are_told_of(op: Op) -> None:
    plain, constant = given(op, (2, 4, 8)), given(op, (2, 4, 8), constant_weights=True)
    assert torch.equal(op.reference(*plain), op.reference(*constant))
    assert "constant_weights" in op.workload_of(constant).label() and op.workload_of(plain).key() != op.workload_of(constant).key()


@BOTH
@pytest.mark.parametrize("name", ["torch.eager", "torch.composed"])
def test_leading_dimensions_are_rows(op: Op, name: str) -> None:
    x, *rest = given(op, (6, 4, 8))
    with kernelyard.use(**{op.name: name}):
        flat, lead = (getattr(ops, op.name)(one, *rest[:-1]) for one in (x, x.view(2, 3, 8)))
    assert torch.equal(lead, flat.view(2, 3, 4))


@BOTH
def test_its_gradient_is_the_reference_s(op: Op) -> None:
    biased = {"bias": GIVEN} if op is RMSNORM_LINEAR else {}
    *tensors, eps, _ = given(op, (3, 5, 7), **biased)
    assert gradcheck(op, (*tensors, eps, False), ("x", "norm", "w", "bias"))
    dy = torch.randn(3, 5)
    with plain_torch():
        got = derivative(lambda *leaves: getattr(ops, op.name)(*leaves, eps), tuple(tensors), (dy,))
    expected = derivative(lambda *leaves: op.reference(*leaves, eps, False), wide(tuple(tensors)), (dy.double(),))
    torch.testing.assert_close([g.double() for g in got], list(expected), rtol=1e-4, atol=1e-5)


X, NORM, W = torch.ones(2, 4), torch.ones(4), torch.ones(6, 4)


@pytest.mark.parametrize(
    ("op", "args", "told"),
    [
        (RMSNORM_LINEAR, (X, torch.ones(5), W, None, EPS, False), r"norm has shape \(5,\), x \(2, 4\)"),
        (RMSNORM_LINEAR, (X, NORM, torch.ones(6, 3), None, EPS, False), r"w has shape \(6, 3\)"),
        (RMSNORM_LINEAR, (X, NORM, torch.ones(4), None, EPS, False), r"w has shape \(4,\)"),
        (RMSNORM_LINEAR, (X, NORM, W, torch.ones(5), EPS, False), r"bias has shape \(5,\)"),
        (RMSNORM_LINEAR, (X, NORM.half(), W, None, EPS, False), "norm is torch.float16, x is torch.float32"),
        (RMSNORM_LINEAR, (X, NORM, W.to("meta"), None, EPS, False), "w is on meta, x on cpu"),
        (RMSNORM_LINEAR, (X, NORM, W, None, -1.0, False), "eps is -1.0"),
        (RMSNORM_LINEAR_SWIGLU, (X, NORM, torch.ones(5, 4), EPS, False), "5 rows, which are no two layers"),
    ],
)
def test_what_the_contracts_leave_undefined_is_refused(op: Op, args: tuple[Any, ...], told: str) -> None:
    with pytest.raises(InvalidInput, match=told):
        op.check(args)
