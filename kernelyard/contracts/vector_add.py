"""Elementwise sum of two tensors of one shape: out = a + b, in float32, rounded once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kernelyard.contracts.rows import ALL_DTYPES, EPSILON, random_tensor
from kernelyard.errors import InvalidInput
from kernelyard.registry.lazy import torch
from kernelyard.registry.op import Gradient, Op, Point
from kernelyard.registry.spec import Cost, Scalar, TensorSpec, Tolerance, Workload

if TYPE_CHECKING:
    from torch import Generator, Tensor

LENGTHS = (0, 1, 2, 15, 31, 127, 128, 129, 1000, 1023, 1025, 4096, 65537, 1_000_003)


def _tensors(sizes: Mapping[str, int], dtype: str, statics: Mapping[str, Scalar]) -> dict[str, TensorSpec | None]:
    return {"a": TensorSpec((sizes["n"],), dtype), "b": TensorSpec((sizes["n"],), dtype)}


def _sizes(specs: Mapping[str, TensorSpec | None]) -> dict[str, int]:
    a = specs["a"]
    assert a is not None
    return {"n": a.numel}


def validate(a: Tensor, b: Tensor) -> None:
    """Refuses what the contract leaves undefined."""
    if a.shape != b.shape:
        raise InvalidInput(
            f"vector_add: a has shape {tuple(a.shape)}, b has {tuple(b.shape)}.", do="Give equal shapes; nothing is broadcast."
        )
    if a.dtype != b.dtype or str(a.dtype).removeprefix("torch.") not in ALL_DTYPES:
        raise InvalidInput(f"vector_add: a is {a.dtype}, b is {b.dtype}.", exists=f"Both must be one of {', '.join(ALL_DTYPES)}.")
    if a.device != b.device:
        raise InvalidInput(f"vector_add: a is on {a.device}, b on {b.device}.", do="Move one of them.")


def reference(a: Tensor, b: Tensor) -> Tensor:
    """The meaning, in the precision of the arguments."""
    return a + b


def _empty(a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
    return (torch.empty_like(a, memory_format=torch.contiguous_format),)


def _inputs(workload: Workload, generator: Generator) -> tuple[Any, ...]:
    return random_tensor(workload["a"], generator), random_tensor(workload["b"], generator)


def _tolerance(workload: Workload) -> Tolerance:
    rounding = EPSILON[workload.dtype]
    return Tolerance(1.01 * rounding, 0.0, f"one rounding to {workload.dtype}: {rounding:.1e}, relative", 1)


def _cost(workload: Workload) -> Cost:
    return Cost(bytes=3 * workload["a"].nbytes, flops=workload["a"].numel)


def _saved(args: tuple[Any, ...], outputs: tuple[Any, ...]) -> tuple[Any, ...]:
    return ()


def _backward(saved: tuple[Any, ...], grads: tuple[Any, ...]) -> tuple[Any, ...]:
    return grads[0].clone(), grads[0].clone()  # neither may alias the other, or the caller's


VECTOR_ADD = Op(
    name="vector_add",
    summary="elementwise sum of two tensors",
    schema="(Tensor a, Tensor b) -> Tensor",
    dims=("n",),
    dtypes=ALL_DTYPES,
    tensors=_tensors,
    sizes=_sizes,
    validate=validate,
    empty=_empty,
    reference=reference,
    inputs=_inputs,
    tolerance=_tolerance,
    cost=_cost,
    matrices={
        "correctness": tuple(Point((n,), dtype, layout) for layout in ("contiguous", "offset") for n in LENGTHS for dtype in ALL_DTYPES),
        "smoke": (*tuple(Point((n,), dtype) for n in (0, 1, 129, 1025) for dtype in ALL_DTYPES), Point((129,), "float32", "offset")),
        "performance/cpu": tuple(Point((n,), "float32") for n in (4096, 65536, 1 << 20, 1 << 24)),
        "performance/cuda": tuple(Point((n,), "bfloat16") for n in (4096, 1 << 20, 1 << 24, 1 << 28, 1_000_003)),
        "held_out/cpu": tuple(Point((n,), "float32") for n in (10_000, 3_000_001)),
        "held_out/cuda": tuple(Point((n,), "bfloat16") for n in (10_000, 3_000_001, 1 << 26)),
    },
    filled=("a",),
    edges=("zeros", "repeated", "large", "denormal", "nan", "inf"),
    collapse=1,
    gradient=Gradient(_saved, _backward),
)
