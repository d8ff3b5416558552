"""Softmax over the last dimension: y = exp(x - max(x)) / sum(exp(x - max(x))), in float32, rounded once.

A row of all -inf gives zeros (torch gives NaN there); a NaN makes its row NaN; a row with +inf is NaN, as in torch.
Source of the shift by the maximum: Milakov and Gimelshein, "Online normalizer calculation for softmax" (2018), algorithm 2.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kernelyard.contracts.rows import ALL_DTYPES, EPSILON, SMALLEST, random_tensor, refuse_rows, row_matrices, row_sizes
from kernelyard.registry.lazy import torch
from kernelyard.registry.op import Gradient, Op
from kernelyard.registry.spec import Cost, Scalar, TensorSpec, Tolerance, Workload

if TYPE_CHECKING:
    from torch import Generator, Tensor


def _tensors(sizes: Mapping[str, int], dtype: str, statics: Mapping[str, Scalar]) -> dict[str, TensorSpec | None]:
    return {"x": TensorSpec((sizes["rows"], sizes["cols"]), dtype)}


def _sizes(specs: Mapping[str, TensorSpec | None]) -> dict[str, int]:
    return row_sizes(specs, "x")


def validate(x: Tensor) -> None:
    """Refuses what the contract leaves undefined."""
    refuse_rows("softmax", "x", x)


def reference(x: Tensor) -> Tensor:
    """The meaning, in the precision of x."""
    dead = (x == -torch.inf).all(-1, keepdim=True)
    return torch.softmax(x.masked_fill(dead, 0.0), -1).masked_fill(dead, 0.0)  # masked before too: else its derivative is NaN


def _empty(x: Tensor) -> tuple[Tensor, ...]:
    return (torch.empty_like(x, memory_format=torch.contiguous_format),)


def _inputs(workload: Workload, generator: Generator) -> tuple[Any, ...]:
    return (random_tensor(workload["x"], generator, std=3.0),)


def _tolerance(workload: Workload) -> Tolerance:
    rounding, cols = EPSILON[workload.dtype], max(workload.dim("cols"), 1)
    accumulated = EPSILON["float32"] * (16 + 64 + cols**0.5)
    return Tolerance(
        1.01 * rounding + accumulated,
        SMALLEST[workload.dtype],
        f"one rounding to {workload.dtype} of {rounding:.1e}, and {accumulated:.1e} in float32: the exponential's argument may be off by "
        f"half a unit at magnitudes up to 64, and a sum of {cols} terms in any order; absolute: the smallest number of the dtype",
        1,
    )


def _cost(workload: Workload) -> Cost:
    return Cost(bytes=2 * workload["x"].nbytes, flops=5 * workload["x"].numel)


def _saved(args: tuple[Any, ...], outputs: tuple[Any, ...]) -> tuple[Any, ...]:
    return outputs


def _backward(saved: tuple[Any, ...], grads: tuple[Any, ...]) -> tuple[Any, ...]:
    from kernelyard.registry.operator import operator

    (y,) = saved
    return (operator("softmax_backward")(grads[0], y),)


SOFTMAX = Op(
    name="softmax",
    summary="softmax of rows",
    schema="(Tensor x) -> Tensor",
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
    filled=("x",),
    edges=("zeros", "repeated", "large", "denormal", "nan", "inf", "masked", "all_masked"),
    collapse=2,
    gradient=Gradient(_saved, _backward),
    baseline="torch.plain",
)
