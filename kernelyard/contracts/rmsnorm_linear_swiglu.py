"""A norm and the gated half of the MLP behind it in one: silu(g) * u with [g | u] = rmsnorm(x) @ w.T.

x is (..., k), norm (k,), w (2 n, k), the gate's rows first. The result is (..., n). Casting and `constant_weights` are those of
`rmsnorm_linear`; what follows the norm is `linear_swiglu`: in float32, rounded once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kernelyard.contracts.matmul_points import sum_error
from kernelyard.contracts.rmsnorm import EPS
from kernelyard.contracts.rmsnorm_linear import norm_inputs, normalised, refuse_weights, through_norm
from kernelyard.contracts.rmsnorm_linear_points import NORM_ROUNDINGS, gated_matrices, norm_error
from kernelyard.contracts.rows import ALL_DTYPES, EPSILON, SMALLEST, refuse_rows
from kernelyard.errors import InvalidInput
from kernelyard.registry.lazy import torch
from kernelyard.registry.op import Gradient, Op
from kernelyard.registry.spec import Cost, Scalar, TensorSpec, Tolerance, Workload

if TYPE_CHECKING:
    from torch import Generator, Tensor

STEEPEST, LARGEST = 1.1, 5.5
"""Silu's slope, and what a gate of size 1 reaches in 10^7 of them."""


def _tensors(sizes: Mapping[str, int], dtype: str, statics: Mapping[str, Scalar]) -> dict[str, TensorSpec | None]:
    k = sizes["k"]
    return {name: TensorSpec(shape, dtype) for name, shape in {"x": (sizes["rows"], k), "norm": (k,), "w": (2 * sizes["n"], k)}.items()}


def _sizes(specs: Mapping[str, TensorSpec | None]) -> dict[str, int]:
    x, w = specs["x"], specs["w"]
    assert x is not None and w is not None
    return {"rows": math.prod(x.shape[:-1]), "n": w.shape[0] // 2, "k": x.shape[-1]}


def validate(x: Tensor, norm: Tensor, w: Tensor, eps: float, constant_weights: bool) -> None:
    """Refuses what the contract leaves undefined."""
    refuse_rows("rmsnorm_linear_swiglu", "x", x)
    columns = w.shape[0] if w.dim() == 2 else 0
    refuse_weights("rmsnorm_linear_swiglu", x, {"norm": (norm, x.shape[-1:]), "w": (w, (columns, x.shape[-1]))}, eps)
    if columns % 2:
        told = f"rmsnorm_linear_swiglu: w has {columns} rows, which are no two layers"
        raise InvalidInput(f"{told}.", do="Give w as (2 * n, k), the gate's rows first.")


def reference(x: Tensor, norm: Tensor, w: Tensor, eps: float, constant_weights: bool) -> Tensor:
    """The meaning, in the precision of x."""
    gate, up = (normalised(x, norm, eps) @ w.T).chunk(2, -1)
    return torch.nn.functional.silu(gate) * up


def _empty(x: Tensor, norm: Tensor, w: Tensor, eps: float, constant_weights: bool) -> tuple[Tensor, ...]:
    return (x.new_empty((*x.shape[:-1], w.shape[0] // 2)),)


def _inputs(workload: Workload, generator: Generator) -> tuple[Any, ...]:
    return *norm_inputs(workload, generator), EPS, workload.static("constant_weights")


def _tolerance(workload: Workload) -> Tolerance:
    rounding, wide, k = EPSILON[workload.dtype], EPSILON["float32"], max(workload.dim("k"), 1)
    drift, cast = sum_error(workload.dtype, k), norm_error(workload.dtype)
    either = (STEEPEST + 1) * LARGEST
    return Tolerance(
        1.01 * rounding * (1 + 2 * NORM_ROUNDINGS) + 80 * wide,
        either * cast + 24 * drift + SMALLEST[workload.dtype],
        f"one rounding of the result to {workload.dtype} of {rounding:.1e} and {NORM_ROUNDINGS} of the factor of both sums, where they go "
        f"one way, and an exponential in float32; absolute, {either:.1f} times the {cast:.1e} by which the factor's roundings move a sum "
        f"of size 1, as silu's slope is {STEEPEST} and either sum is multiplied by the other, of up to {LARGEST}, and 24 times the "
        f"{drift:.1e} by which a float32 sum of {k} products that cancel may be off",
        1 + NORM_ROUNDINGS,
    )


def _cost(workload: Workload) -> Cost:
    rows, n, k = (workload.dim(name) for name in ("rows", "n", "k"))
    given = sum(spec.nbytes for _, spec in workload.tensors if spec is not None)
    out = rows * n * workload["x"].nbytes // max(workload["x"].numel, 1)
    return Cost(bytes=given + out, flops=4 * rows * n * k + 5 * rows * n + 4 * rows * k)


def _saved(args: tuple[Any, ...], outputs: tuple[Any, ...]) -> tuple[Any, ...]:
    return args[:4]


def _backward(saved: tuple[Any, ...], grads: tuple[Any, ...]) -> tuple[Any, ...]:
    """By the gradients of swiglu, of a product and of the norm; both sums are computed once more."""
    from kernelyard.registry.operator import operator

    x, norm, w, eps = saved
    rows = x.reshape(math.prod(x.shape[:-1]), x.shape[-1])
    dy = grads[0].reshape(rows.shape[0], w.shape[0] // 2).contiguous()
    both, _ = operator("swiglu_backward")(dy, operator("rmsnorm_linear")(rows, norm, w, None, eps), None)
    dx, dnorm, dw = through_norm(rows, norm, w, both, eps)
    return dx.view(x.shape), dnorm, dw, None, None


RMSNORM_LINEAR_SWIGLU = Op(
    name="rmsnorm_linear_swiglu",
    summary="rmsnorm with Llama's casting, two linear layers, silu of one times the other",
    schema="(Tensor x, Tensor norm, Tensor w, float eps=1e-06, *, bool constant_weights=False) -> Tensor",
    dims=("rows", "n", "k"),
    dtypes=ALL_DTYPES,
    statics=("constant_weights",),
    tensors=_tensors,
    sizes=_sizes,
    validate=validate,
    empty=_empty,
    reference=reference,
    inputs=_inputs,
    tolerance=_tolerance,
    cost=_cost,
    matrices=gated_matrices(),
    filled=("x",),
    edges=("zeros", "repeated", "nan"),
    collapse=2,
    gradient=Gradient(_saved, _backward),
    baseline="torch.plain",
)
