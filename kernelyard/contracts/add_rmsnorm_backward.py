"""The gradient of add_rmsnorm: (dx, dw), where dx belongs to x and to residual alike.

dx = rmsnorm_backward(dy, r, w)'s dx + dr, in float32, rounded once; dw as there. r is the sum that add_rmsnorm returned, dr
the gradient that came back for it; without dr nothing is added. See rmsnorm_backward for the formula and for casting.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kernelyard.contracts.rmsnorm import norm_matrices, refuse_norm
from kernelyard.contracts.rmsnorm_backward import EPS, tolerance
from kernelyard.contracts.rows import ALL_DTYPES, in_other_words, random_tensor, refuse_rows, refuse_unlike, row_sizes, with_others
from kernelyard.registry.lazy import torch
from kernelyard.registry.matrix import ABSENT
from kernelyard.registry.op import Op
from kernelyard.registry.spec import Cost, Scalar, TensorSpec, Tolerance, Workload

if TYPE_CHECKING:
    from torch import Generator, Tensor


def _tensors(sizes: Mapping[str, int], dtype: str, statics: Mapping[str, Scalar]) -> dict[str, TensorSpec | None]:
    rows = TensorSpec((sizes["rows"], sizes["cols"]), dtype)
    return {"dy": rows, "dr": rows, "r": rows, "w": TensorSpec((sizes["cols"],), dtype)}


def _sizes(specs: Mapping[str, TensorSpec | None]) -> dict[str, int]:
    return row_sizes(specs, "r")


def validate(dy: Tensor, dr: Tensor | None, r: Tensor, w: Tensor | None, eps: float, offset: float, casting: str) -> None:
    """Refuses what the contract leaves undefined."""
    refuse_rows("add_rmsnorm_backward", "r", r)
    refuse_unlike("add_rmsnorm_backward", "dy", dy, "r", r)
    if dr is not None:
        refuse_unlike("add_rmsnorm_backward", "dr", dr, "r", r)
    refuse_norm("add_rmsnorm_backward", "r", r, w, eps, casting)


def reference(dy: Tensor, dr: Tensor | None, r: Tensor, w: Tensor | None, eps: float, offset: float, casting: str) -> tuple[Tensor, Tensor]:
    """The meaning, in the precision of r."""
    rstd = torch.rsqrt(r.square().mean(-1, keepdim=True) + eps)
    scaled, normal = dy if w is None else dy * (w.to(r.dtype) + offset), r * rstd
    dx = rstd * (scaled - normal * (scaled * normal).mean(-1, keepdim=True))
    dw = r.new_empty(0) if w is None else (dy * normal).reshape(math.prod(r.shape[:-1]), r.shape[-1]).sum(0)
    return (dx if dr is None else dx + dr), dw


def _empty(dy: Tensor, dr: Tensor | None, r: Tensor, w: Tensor | None, eps: float, offset: float, casting: str) -> tuple[Tensor, ...]:
    dw = r.new_empty(0) if w is None else torch.empty_like(w, memory_format=torch.contiguous_format)
    return torch.empty_like(r, memory_format=torch.contiguous_format), dw


def _inputs(workload: Workload, generator: Generator) -> tuple[Any, ...]:
    offset = float(workload.static("offset"))
    w = random_tensor(workload["w"], generator, mean=1.0 - offset, std=0.3) if workload.has("w") else None
    dy, r = random_tensor(workload["dy"], generator), random_tensor(workload["r"], generator)
    dr = random_tensor(workload["dr"], generator) if workload.has("dr") else None
    return dy, dr, r, w, EPS, offset, workload.static("casting")


def _tolerance(workload: Workload) -> Tolerance:
    """That of rmsnorm_backward: dr adds a term to dx, and no rounding."""
    return tolerance(workload)


def _cost(workload: Workload) -> Cost:
    weight = 2 * workload["w"].nbytes if workload.has("w") else 0
    added = workload["dr"].nbytes if workload.has("dr") else 0
    return Cost(bytes=3 * workload["r"].nbytes + added + weight, flops=12 * workload["r"].numel)


ADD_RMSNORM_BACKWARD = Op(
    name="add_rmsnorm_backward",
    summary="gradient of add_rmsnorm, for its two addends and its weight",
    schema="(Tensor dy, Tensor? dr, Tensor r, Tensor? w=None, float eps=1e-06, *, float offset=0.0, str casting='fp32') "
    "-> (Tensor, Tensor)",
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
    matrices=with_others(norm_matrices(), in_other_words(("dr", ABSENT))),
    filled=("dy", "r"),
    edges=("zeros", "repeated", "denormal", "nan"),
    collapse=2,
    baseline="torch.plain",
)
