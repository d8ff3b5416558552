"""The gradient of softmax from its result: dx = y * (dy - sum(dy * y)) over the last dimension, in float32, rounded once.

A row of zeros, which softmax makes of a row of all -inf, has a gradient of zeros. A NaN in dy makes its row NaN.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kernelyard.contracts.rows import ALL_DTYPES, EPSILON, random_tensor, refuse_rows, refuse_unlike, row_matrices, row_sizes
from kernelyard.registry.lazy import torch
from kernelyard.registry.op import Op
from kernelyard.registry.spec import Cost, Scalar, TensorSpec, Tolerance, Workload

if TYPE_CHECKING:
    from torch import Generator, Tensor


def _tensors(sizes: Mapping[str, int], dtype: str, statics: Mapping[str, Scalar]) -> dict[str, TensorSpec | None]:
    rows = TensorSpec((sizes["rows"], sizes["cols"]), dtype)
    return {"dy": rows, "y": rows}


def _sizes(specs: Mapping[str, TensorSpec | None]) -> dict[str, int]:
    return row_sizes(specs, "y")


def validate(dy: Tensor, y: Tensor) -> None:
    """Refuses what the contract leaves undefined."""
    refuse_rows("softmax_backward", "y", y)
    refuse_unlike("softmax_backward", "dy", dy, "y", y)


def reference(dy: Tensor, y: Tensor) -> Tensor:
    """The meaning, in the precision of y."""
    return y * (dy - (dy * y).sum(-1, keepdim=True))


def _empty(dy: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    return (torch.empty_like(y, memory_format=torch.contiguous_format),)


def _inputs(workload: Workload, generator: Generator) -> tuple[Any, ...]:
    """y is a softmax of what softmax's own inputs are; where there are more than two rows, the first was masked altogether."""
    y = random_tensor(workload["y"], generator, std=3.0)
    if y.numel():
        y.copy_(torch.softmax(y.float(), -1))
    if y.shape[0] > 2:
        y[0] = 0.0
    return random_tensor(workload["dy"], generator), y


def _tolerance(workload: Workload) -> Tolerance:
    rounding, wide, cols = EPSILON[workload.dtype], EPSILON["float32"], max(workload.dim("cols"), 1)
    accumulated = wide * (8 + cols**0.5)
    return Tolerance(
        1.01 * rounding + accumulated,
        64 * wide,
        f"one rounding to {workload.dtype} of {rounding:.1e}, and {accumulated:.1e} for a float32 sum of {cols} products in any order "
        f"(sqrt of the length), a difference and a product; absolute, {64 * wide:.1e}: dy and its weighted mean, of up to 16 each, "
        "that cancel",
        1,
    )


def _cost(workload: Workload) -> Cost:
    return Cost(bytes=3 * workload["y"].nbytes, flops=4 * workload["y"].numel)


SOFTMAX_BACKWARD = Op(
    name="softmax_backward",
    summary="gradient of softmax, from its result",
    schema="(Tensor dy, Tensor y) -> Tensor",
    dims=("rows", "cols"),
    dtypes=ALL_DTYPES,
    tensors=_tensors,
    sizes=_sizes,
    validate=validate,
    empty=_empty,
    reference=reference,
    inputs=_inputs,
    tolerance=_tolerance,
    cost=_cost,
    matrices=row_matrices(),
    filled=("dy",),
    edges=("zeros", "denormal", "nan"),
    collapse=2,
    baseline="torch.plain",
)
