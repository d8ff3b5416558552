"""The gradient of swiglu: da like a and db like b, elementwise, in float32, each rounded once. With s = 1 / (1 + exp(-a)):

    da = dy * b * s * (1 + a * (1 - s))        db = dy * a * s

Packed, without b, da is packed as a is, and db is an empty tensor of shape (0,).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kernelyard.contracts.rows import ALL_DTYPES, EPSILON, random_tensor, refuse_rows
from kernelyard.contracts.swiglu import gate_specs, glu_matrices, glu_sizes, halves, refuse_gate
from kernelyard.errors import InvalidInput
from kernelyard.registry.lazy import torch
from kernelyard.registry.op import Op
from kernelyard.registry.spec import Cost, Scalar, TensorSpec, Tolerance, Workload

if TYPE_CHECKING:
    from torch import Generator, Tensor


def _tensors(sizes: Mapping[str, int], dtype: str, statics: Mapping[str, Scalar]) -> dict[str, TensorSpec | None]:
    return {"dy": TensorSpec((sizes["rows"], sizes["cols"]), dtype), **gate_specs(sizes, dtype, statics)}


def _sizes(specs: Mapping[str, TensorSpec | None]) -> dict[str, int]:
    return glu_sizes(specs)


def validate(dy: Tensor, a: Tensor, b: Tensor | None) -> None:
    """Refuses what the contract leaves undefined."""
    op = "swiglu_backward"
    refuse_gate(op, a, b)
    refuse_rows(op, "dy", dy)
    expected = (*a.shape[:-1], a.shape[-1] // (2 if b is None else 1))
    if tuple(dy.shape) != expected:
        raise InvalidInput(f"{op}: dy has shape {tuple(dy.shape)}.", do=f"Give it in the shape of swiglu's result, {expected}.")
    if dy.dtype != a.dtype:
        raise InvalidInput(f"{op}: dy is {dy.dtype}, a is {a.dtype}.", do="Give both in one dtype.")
    if dy.device != a.device:
        raise InvalidInput(f"{op}: dy is on {dy.device}, a on {a.device}.", do="Move one of them.")


def reference(dy: Tensor, a: Tensor, b: Tensor | None) -> tuple[Tensor, Tensor]:
    """The meaning, in the precision of a."""
    gate, up = halves(a, b)
    sigmoid = torch.sigmoid(gate)
    da = dy * up * (sigmoid * (1 + gate * (1 - sigmoid)))
    db = dy * (gate * sigmoid)
    return (torch.cat((da, db), -1), a.new_empty(0)) if b is None else (da, db)


def _empty(dy: Tensor, a: Tensor, b: Tensor | None) -> tuple[Tensor, ...]:
    da = torch.empty_like(a, memory_format=torch.contiguous_format)
    return da, a.new_empty(0) if b is None else torch.empty_like(b, memory_format=torch.contiguous_format)


def _inputs(workload: Workload, generator: Generator) -> tuple[Any, ...]:
    dy, a = random_tensor(workload["dy"], generator), random_tensor(workload["a"], generator, std=2.0)
    return dy, a, random_tensor(workload["b"], generator) if workload.has("b") else None


def _tolerance(workload: Workload) -> Tolerance:
    rounding, wide = EPSILON[workload.dtype], EPSILON["float32"]
    exponential = wide * (16 + 64)
    return Tolerance(
        1.01 * rounding + exponential,
        64 * wide,
        f"one rounding to {workload.dtype} of {rounding:.1e}, and {exponential:.1e} in float32: the exponential's argument may be off by "
        f"half a unit at magnitudes up to 64, then sums and products; absolute, {64 * wide:.1e}: 1 and a (1 - s) cancel where a is near "
        "-1.28, times dy b of up to 16",
        1,
    )


def _cost(workload: Workload) -> Cost:
    given = workload["a"].nbytes + (workload["b"].nbytes if workload.has("b") else 0)
    return Cost(bytes=2 * given + workload["dy"].nbytes, flops=10 * workload["dy"].numel)


SWIGLU_BACKWARD = Op(
    name="swiglu_backward",
    summary="gradient of swiglu, for both of its factors",
    schema="(Tensor dy, Tensor a, Tensor? b=None) -> (Tensor, Tensor)",
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
    matrices=glu_matrices(),
    filled=("a",),
    edges=("zeros", "repeated", "large", "denormal", "nan"),
    collapse=2,
)
