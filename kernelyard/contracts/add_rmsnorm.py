"""A residual sum and its rmsnorm in one pass: r = x + residual, y = rmsnorm(r), both returned as (y, r).

r is added in float32 and rounded to x's dtype; y is the rmsnorm of r as it was rounded, so that whoever reads r later
(the next layer, the backward) sees what was normalised. Offset, casting and infinities are as in rmsnorm.

In place: with `out=`, y or r may be x or residual themselves.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kernelyard.contracts.rmsnorm import EPS, forward_matrices, refuse_norm
from kernelyard.contracts.rows import ALL_DTYPES, EPSILON, SMALLEST, random_tensor, refuse_rows, refuse_unlike, row_sizes
from kernelyard.registry.lazy import torch
from kernelyard.registry.op import Gradient, Op
from kernelyard.registry.spec import Cost, Scalar, TensorSpec, Tolerance, Workload

if TYPE_CHECKING:
    from torch import Generator, Tensor


def _tensors(sizes: Mapping[str, int], dtype: str, statics: Mapping[str, Scalar]) -> dict[str, TensorSpec | None]:
    rows = TensorSpec((sizes["rows"], sizes["cols"]), dtype)
    return {"x": rows, "residual": rows, "w": TensorSpec((sizes["cols"],), dtype)}


def _sizes(specs: Mapping[str, TensorSpec | None]) -> dict[str, int]:
    return row_sizes(specs, "x")


def validate(x: Tensor, residual: Tensor, w: Tensor | None, eps: float, offset: float, casting: str) -> None:
    """Refuses what the contract leaves undefined."""
    refuse_rows("add_rmsnorm", "x", x)
    refuse_unlike("add_rmsnorm", "residual", residual, "x", x)
    refuse_norm("add_rmsnorm", "x", x, w, eps, casting)


def reference(x: Tensor, residual: Tensor, w: Tensor | None, eps: float, offset: float, casting: str) -> tuple[Tensor, Tensor]:
    """The meaning, in the precision of x; that r is rounded before it is normalised is part of the tolerance."""
    r = x + residual
    y = r * torch.rsqrt(r.square().mean(-1, keepdim=True) + eps)
    return (y if w is None else y * (w.to(y.dtype) + offset)), r


def _empty(x: Tensor, residual: Tensor, w: Tensor | None, eps: float, offset: float, casting: str) -> tuple[Tensor, ...]:
    return torch.empty_like(x, memory_format=torch.contiguous_format), torch.empty_like(x, memory_format=torch.contiguous_format)


def _inputs(workload: Workload, generator: Generator) -> tuple[Any, ...]:
    offset = float(workload.static("offset"))
    w = random_tensor(workload["w"], generator, mean=1.0 - offset, std=0.3) if workload.has("w") else None
    x, residual = (random_tensor(workload[name], generator) for name in ("x", "residual"))
    return x, residual, w, EPS, offset, workload.static("casting")


def _tolerance(workload: Workload) -> Tolerance:
    """y's element is rounded as part of r and as itself (and twice more with 'llama'), and the other elements' rounding may move their root
    mean square by one more."""
    rounding = EPSILON[workload.dtype]
    roundings = 4 if workload.static("casting") == "llama" else 2
    cols = max(workload.dim("cols"), 1)
    accumulated = EPSILON["float32"] * (8 + cols.bit_length() + cols**0.5)
    return Tolerance(
        1.01 * rounding * (roundings + 1) + accumulated,
        SMALLEST[workload.dtype],
        f"{roundings} roundings to {workload.dtype} of {rounding:.1e} each, that of r among them, one more for r's in the mean, "
        f"and {accumulated:.1e} for a float32 sum of {cols} squares in any order (sqrt of the length), rsqrt and two products; absolute: "
        "the smallest number of the dtype",
        roundings,
        (Tolerance(1.01 * rounding, 0.0, f"r is one rounding to {workload.dtype}: {rounding:.1e}, relative", 1),),
    )


def _cost(workload: Workload) -> Cost:
    weight = workload["w"].nbytes if workload.has("w") else 0
    return Cost(bytes=4 * workload["x"].nbytes + weight, flops=5 * workload["x"].numel)


def _saved(args: tuple[Any, ...], outputs: tuple[Any, ...]) -> tuple[Any, ...]:
    return outputs[1], *args[2:]


def _backward(saved: tuple[Any, ...], grads: tuple[Any, ...]) -> tuple[Any, ...]:
    """One gradient for x and residual alike; autograd gives None for an output that nothing was made of."""
    from kernelyard.registry.operator import operator

    r, w, eps, offset, casting = saved
    dy, dr = grads
    if dy is None:
        return dr, dr, None, None, None, None
    dx, dw = operator("add_rmsnorm_backward")(dy, dr, r, w, eps, offset=offset, casting=casting)
    return dx, dx, None if w is None else dw, None, None, None


ADD_RMSNORM = Op(
    name="add_rmsnorm",
    summary="sum with a residual and its root-mean-square normalisation, both returned",
    schema="(Tensor x, Tensor residual, Tensor? w=None, float eps=1e-06, *, float offset=0.0, str casting='fp32') -> (Tensor, Tensor)",
    dims=("rows", "cols"),
    dtypes=ALL_DTYPES,
    statics=("offset", "casting"),
    tensors=_tensors,
    sizes=_sizes,
    validate=validate,
    empty=_empty,
    reference=reference,
    inputs=_inputs,
    tolerance=_tolerance,
    cost=_cost,
    matrices=forward_matrices(),
    filled=("x",),
    edges=("zeros", "repeated", "large", "denormal", "nan"),
    collapse=2,
    in_place=((0, "x"), (0, "residual"), (1, "x"), (1, "residual")),
    gradient=Gradient(_saved, _backward),
)
