"""The gradient of rmsnorm: dx of x's dtype and dw of w's, from dy, x and w alone.

With s = dy * (w + offset), rstd = rsqrt(mean(x^2) + eps) and n = x * rstd, over the last dimension:
    dx = rstd * (s - n * mean(s * n))        dw = sum over rows of dy * n
Everything is in float32 and rounded once at the end. rstd is computed again: x is read anyway, and nothing but x and w is
kept between forward and backward. Without w, dw is an empty tensor of shape (0,) of x's dtype.

Source: Zhang and Sennrich, "Root Mean Square Layer Normalization" (2019), equations 8 and 9, with eps inside the root.

Casting. 'llama' has the very formula of 'fp32': a rounding has no derivative, and what it changes is within the tolerance.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kernelyard.contracts.rmsnorm import norm_matrices, refuse_norm
from kernelyard.contracts.rows import ALL_DTYPES, EPSILON, random_tensor, refuse_rows, refuse_unlike, row_sizes
from kernelyard.registry.lazy import torch
from kernelyard.registry.op import Op
from kernelyard.registry.spec import Cost, Scalar, TensorSpec, Tolerance, Workload

if TYPE_CHECKING:
    from torch import Generator, Tensor

EPS = 0.1
"""Of the typical inputs: a tenth of their mean square, so that eps left out or outside of the root is 5% off, and rstd stays below 3.2."""


def _tensors(sizes: Mapping[str, int], dtype: str, statics: Mapping[str, Scalar]) -> dict[str, TensorSpec | None]:
    rows = TensorSpec((sizes["rows"], sizes["cols"]), dtype)
    return {"dy": rows, "x": rows, "w": TensorSpec((sizes["cols"],), dtype)}


def _sizes(specs: Mapping[str, TensorSpec | None]) -> dict[str, int]:
    return row_sizes(specs, "x")


def validate(dy: Tensor, x: Tensor, w: Tensor | None, eps: float, offset: float, casting: str) -> None:
    """Refuses what the contract leaves undefined."""
    refuse_rows("rmsnorm_backward", "x", x)
    refuse_unlike("rmsnorm_backward", "dy", dy, "x", x)
    refuse_norm("rmsnorm_backward", "x", x, w, eps, casting)


def reference(dy: Tensor, x: Tensor, w: Tensor | None, eps: float, offset: float, casting: str) -> tuple[Tensor, Tensor]:
    """The meaning, in the precision of x."""
    rstd = torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
    scaled, normal = dy if w is None else dy * (w.to(x.dtype) + offset), x * rstd
    dx = rstd * (scaled - normal * (scaled * normal).mean(-1, keepdim=True))
    return dx, x.new_empty(0) if w is None else (dy * normal).reshape(math.prod(x.shape[:-1]), x.shape[-1]).sum(0)


def empty(dy: Tensor, x: Tensor, w: Tensor | None, eps: float, offset: float, casting: str) -> tuple[Tensor, ...]:
    """dx and dw, not filled."""
    dw = x.new_empty(0) if w is None else torch.empty_like(w, memory_format=torch.contiguous_format)
    return torch.empty_like(x, memory_format=torch.contiguous_format), dw


def _inputs(workload: Workload, generator: Generator) -> tuple[Any, ...]:
    offset = float(workload.static("offset"))
    w = random_tensor(workload["w"], generator, mean=1.0 - offset, std=0.3) if workload.has("w") else None
    return random_tensor(workload["dy"], generator), random_tensor(workload["x"], generator), w, EPS, offset, workload.static("casting")


def tolerance(workload: Workload) -> Tolerance:
    """Of dx by the columns that are summed, of dw by the rows; weight and rows may be of different dtypes."""
    rounding, wide, cols = EPSILON[workload.dtype], EPSILON["float32"], max(workload.dim("cols"), 1)
    accumulated = wide * (16 + cols.bit_length() + cols**0.5)
    return Tolerance(
        1.01 * rounding + accumulated,
        64 * wide,
        f"one rounding to {workload.dtype} of {rounding:.1e}, and {accumulated:.1e} for two float32 sums of {cols} terms in any order "
        f"(sqrt of the length), rsqrt and products; absolute, {64 * wide:.1e}: two terms of up to 16, a few roundings of each, that cancel",
        1,
        (_of_the_weight(workload),),
    )


def _of_the_weight(workload: Workload) -> Tolerance:
    """A running sum of n terms of either sign and size 1 reaches sqrt(k) after k; n roundings of that, in one sequence, come to 0.4 n half
    units in the mean square, and to 1.9 n in the worst of some thousand columns. Any other order is better. Where few
    rows cancel, the roundings of the largest terms stay: of up to 16, as for dx."""
    dtype = workload["w"].dtype if workload.has("w") else workload.dtype
    rounding, wide, rows, cols = EPSILON[dtype], EPSILON["float32"], max(workload.dim("rows"), 1), max(workload.dim("cols"), 1)
    accumulated, cancelled = wide * (16 + rows**0.5 + cols.bit_length() + cols**0.5), wide * (64 + 2 * rows)
    return Tolerance(
        1.01 * rounding + accumulated,
        cancelled,
        f"one rounding to {dtype} of {rounding:.1e}, and {accumulated:.1e} for a float32 sum over {rows} rows in any order (sqrt of the "
        f"length) and that of {cols} squares; absolute, {cancelled:.1e}: terms of size 1, few up to 16, that cancel, one after the other",
        1,
    )


def _cost(workload: Workload) -> Cost:
    weight = 2 * workload["w"].nbytes if workload.has("w") else 0
    return Cost(bytes=3 * workload["x"].nbytes + weight, flops=11 * workload["x"].numel)


RMSNORM_BACKWARD = Op(
    name="rmsnorm_backward",
    summary="gradient of rmsnorm, for its input and its weight",
    schema="(Tensor dy, Tensor x, Tensor? w=None, float eps=1e-06, *, float offset=0.0, str casting='fp32') -> (Tensor, Tensor)",
    dims=("rows", "cols"),
    dtypes=ALL_DTYPES,
    statics=("offset", "casting"),
    tensors=_tensors,
    sizes=_sizes,
    validate=validate,
    empty=empty,
    reference=reference,
    inputs=_inputs,
    tolerance=tolerance,
    cost=_cost,
    matrices=norm_matrices(),
    filled=("dy", "x"),
    edges=("zeros", "repeated", "denormal", "nan"),
    collapse=2,
    baseline="torch.plain",
)
