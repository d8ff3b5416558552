"""SwiGLU: silu(a) * b with silu(a) = a / (1 + exp(-a)), elementwise, in float32, rounded once.

From two tensors of one shape (..., cols), or packed: without b, a is (..., 2 * cols), its first half a and its second b. `cols`
counts columns of the result. What a = -inf gives is left open: NaN in torch, 0 where exp(-a) is kept finite.

Source: Shazeer, "GLU Variants Improve Transformer" (2020), equation 6, without its matrices.
In place: with `out=`, the result may be a or b themselves, where they are two tensors.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kernelyard.contracts.rows import (
    ALL_DTYPES,
    CPU_HELD_OUT,
    CPU_SHAPES,
    EPSILON,
    SMALLEST,
    in_other_words,
    points,
    random_tensor,
    refuse_rows,
    refuse_unlike,
    row_matrices,
    with_others,
)
from kernelyard.errors import InvalidInput
from kernelyard.registry.lazy import torch
from kernelyard.registry.matrix import ABSENT
from kernelyard.registry.op import Gradient, Op, Point
from kernelyard.registry.spec import Cost, Scalar, TensorSpec, Tolerance, Workload

if TYPE_CHECKING:
    from torch import Generator, Tensor


def _tensors(sizes: Mapping[str, int], dtype: str, statics: Mapping[str, Scalar]) -> dict[str, TensorSpec | None]:
    return gate_specs(sizes, dtype, statics)


def gate_specs(sizes: Mapping[str, int], dtype: str, statics: Mapping[str, Scalar]) -> dict[str, TensorSpec | None]:
    """a and b, or a that holds both."""
    rows, cols = sizes["rows"], sizes["cols"]
    if statics.get("b") == ABSENT:
        return {"a": TensorSpec((rows, 2 * cols), dtype), "b": None}
    return {"a": TensorSpec((rows, cols), dtype), "b": TensorSpec((rows, cols), dtype)}


def _sizes(specs: Mapping[str, TensorSpec | None]) -> dict[str, int]:
    return glu_sizes(specs)


def glu_sizes(specs: Mapping[str, TensorSpec | None]) -> dict[str, int]:
    """(rows, cols) of the result, from a with b or from a that holds both."""
    a = specs["a"]
    assert a is not None
    packed = specs["b"] is None
    return {"rows": math.prod(a.shape[:-1]), "cols": a.shape[-1] // 2 if packed else a.shape[-1]}


def validate(a: Tensor, b: Tensor | None) -> None:
    """Refuses what the contract leaves undefined."""
    refuse_gate("swiglu", a, b)


def refuse_gate(op: str, a: Tensor, b: Tensor | None) -> None:
    """What is neither two tensors of one kind nor one with two halves."""
    refuse_rows(op, "a", a)
    if b is not None:
        refuse_unlike(op, "b", b, "a", a)
    elif a.shape[-1] % 2:
        raise InvalidInput(f"{op}: a has {a.shape[-1]} columns and there is no b.", do="Give b, or a as (..., 2 * cols) with both in it.")


def halves(a: Tensor, b: Tensor | None) -> tuple[Tensor, Tensor]:
    """a and b, wherever they are."""
    return (a[..., : a.shape[-1] // 2], a[..., a.shape[-1] // 2 :]) if b is None else (a, b)


def reference(a: Tensor, b: Tensor | None) -> Tensor:
    """The meaning, in the precision of a."""
    gate, up = halves(a, b)
    return torch.nn.functional.silu(gate) * up


def _empty(a: Tensor, b: Tensor | None) -> tuple[Tensor, ...]:
    if b is not None:
        return (torch.empty_like(a, memory_format=torch.contiguous_format),)
    return (a.new_empty((*a.shape[:-1], a.shape[-1] // 2)),)


def _inputs(workload: Workload, generator: Generator) -> tuple[Any, ...]:
    a = random_tensor(workload["a"], generator, std=2.0)
    return a, random_tensor(workload["b"], generator) if workload.has("b") else None


def _tolerance(workload: Workload) -> Tolerance:
    rounding, exponential = EPSILON[workload.dtype], EPSILON["float32"] * (16 + 64)
    return Tolerance(
        1.01 * rounding + exponential,
        SMALLEST[workload.dtype],
        f"one rounding to {workload.dtype} of {rounding:.1e}, and {exponential:.1e} in float32: the exponential's argument may be off by "
        "half a unit at magnitudes up to 64, then a sum, a quotient and a product; absolute: the smallest number of the dtype",
        1,
    )


def _cost(workload: Workload) -> Cost:
    given = workload["a"].nbytes + (workload["b"].nbytes if workload.has("b") else 0)
    return Cost(bytes=given + given // 2, flops=5 * workload.dim("rows") * workload.dim("cols"))


def _saved(args: tuple[Any, ...], outputs: tuple[Any, ...]) -> tuple[Any, ...]:
    return args


def _backward(saved: tuple[Any, ...], grads: tuple[Any, ...]) -> tuple[Any, ...]:
    from kernelyard.registry.operator import operator

    a, b = saved
    da, db = operator("swiglu_backward")(grads[0], a, b)
    return da, None if b is None else db


@functools.cache
def glu_matrices() -> Mapping[str, tuple[Point, ...]]:
    """Those of rows, a few packed, and the widths of models' MLPs where speed counts."""
    layouts = ("row_strided", "transposed", "offset")
    packed = in_other_words(("b", ABSENT)) + tuple(Point((7, 129), "bfloat16", layout, (("b", ABSENT),)) for layout in layouts)
    packed += tuple(Point(shape, "bfloat16", statics=(("b", ABSENT),)) for shape in ((0, 128), (1, 1), (128, 4096)))
    return {
        **with_others(row_matrices(), packed),
        "performance/cpu": points(CPU_SHAPES, ("float32", "bfloat16")),
        "performance/cuda": points(((1, 14336), (16, 14336), (8192, 14336), (4096, 8192), (1000, 4095)), ("bfloat16",)),
        "held_out/cpu": points(CPU_HELD_OUT, ("float32", "bfloat16")),
        "held_out/cuda": points(((4, 11008), (3000, 5120), (777, 16384)), ("bfloat16",)),
    }


SWIGLU = Op(
    name="swiglu",
    summary="silu of one tensor times another, or of the two halves of one",
    schema="(Tensor a, Tensor? b=None) -> Tensor",
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
    in_place=((0, "a"), (0, "b")),
    gradient=Gradient(_saved, _backward),
    baseline="torch.plain",
)
