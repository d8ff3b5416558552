"""What row ops share as part of their meaning: frozen shapes (rows, cols), typical inputs, and what none of them accepts."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from kernelyard.errors import InvalidInput
from kernelyard.registry.lazy import torch
from kernelyard.registry.op import Point
from kernelyard.registry.spec import Scalar, TensorSpec

if TYPE_CHECKING:
    from torch import Generator, Tensor

ALL_DTYPES = ("float32", "bfloat16", "float16")
ROWS = (0, 1, 2, 7, 33, 128, 1000)
COLS = (1, 2, 31, 127, 128, 129, 768, 1000, 1024, 4095, 4096, 8192, 32768)
LAYOUT_SHAPES = ((33, 129), (7, 1024))
CPU_SHAPES = ((1, 4096), (16, 4096), (512, 1024), (512, 4096), (64, 32768), (1000, 4095))
CPU_HELD_OUT = ((4, 2048), (300, 5120), (37, 777))

EPSILON = {"float32": 2.0**-24, "bfloat16": 2.0**-8, "float16": 2.0**-11, "float64": 2.0**-53}
"""Half a unit in the last place of 1.0, relative: the error of one rounding to nearest."""
SMALLEST = {"float32": 1e-37, "bfloat16": 1e-37, "float16": 2.0**-24}
"""Absolute: what a result below the normal numbers of a dtype may be off by."""


def points(shapes: Sequence[tuple[int, ...]], dtypes: Sequence[str]) -> tuple[Point, ...]:
    """Every shape in every dtype, contiguous."""
    return tuple(Point(shape, dtype) for shape, dtype in itertools.product(shapes, dtypes))


def in_other_words(*meanings: tuple[str, Scalar]) -> tuple[Point, ...]:
    """A few points in each meaning that is not the usual one: a static of another value, or an optional tensor that is not given."""
    shapes = ((7, 129), (33, 1024))
    return tuple(Point(shape, dtype, statics=(meaning,)) for shape in shapes for dtype in ALL_DTYPES for meaning in meanings)


def with_others(frozen: Mapping[str, tuple[Point, ...]], others: tuple[Point, ...]) -> dict[str, tuple[Point, ...]]:
    """Matrices with further points to be right on; the first half of them in the quick one."""
    return {**frozen, "correctness": frozen["correctness"] + others, "smoke": frozen["smoke"] + others[: len(others) // 2]}


@functools.cache
def row_matrices() -> Mapping[str, tuple[Point, ...]]:
    """The frozen matrices of an op over rows: sizes a CPU is used for, sizes a GPU is used for. Ops share the very points."""
    layouts = ("row_strided", "transposed", "broadcast", "offset")
    strided = tuple(Point(shape, dtype, layout) for layout in layouts for shape in LAYOUT_SHAPES for dtype in ALL_DTYPES)
    return {
        "correctness": points(tuple(itertools.product(ROWS, COLS)), ALL_DTYPES) + strided,
        "smoke": points(((0, 128), (1, 1), (2, 31), (7, 129), (33, 1000), (3, 4095)), ALL_DTYPES)
        + tuple(Point((7, 129), "float32", layout) for layout in layouts),
        "performance/cpu": points(CPU_SHAPES, ("float32",)),
        "performance/cuda": points(
            ((1, 4096), (16, 4096), (4096, 768), (8192, 1024), (8192, 4096), (16384, 4096), (4096, 8192), (2048, 32768),
             (32768, 128), (1000, 4095)),
            ("bfloat16",),
        ),
        "held_out/cpu": points(CPU_HELD_OUT, ("float32",)),
        "held_out/cuda": points(((4, 2048), (3000, 5120), (12288, 2880), (777, 16384)), ("bfloat16",)),
    }  # fmt: skip


def row_sizes(specs: Mapping[str, TensorSpec | None], name: str) -> dict[str, int]:
    """(rows, cols) of the tensor of that name."""
    x = specs[name]
    assert x is not None
    return {"rows": math.prod(x.shape[:-1]), "cols": x.shape[-1]}


def random_tensor(spec: TensorSpec, generator: Generator, mean: float = 0.0, std: float = 1.0) -> Tensor:
    """Normal values in the layout of the spec, in memory of its own; a broadcast dimension holds one row."""
    span = 1 + sum((size - 1) * stride for size, stride in zip(spec.shape, spec.strides, strict=True)) if spec.numel else 0
    offset = 0 if spec.aligned else 1
    dtype = getattr(torch, spec.dtype)
    storage = torch.empty(span + offset, dtype=torch.float32, device=generator.device)
    storage.normal_(mean, std, generator=generator)
    return storage.to(dtype).as_strided(spec.shape, spec.strides, offset)


# What is refused --------------------------------------------------------------------------------------


def refuse_rows(op: str, name: str, x: Tensor) -> None:
    """A tensor that is no rows, or of a dtype that no op has."""
    if x.dim() < 1:
        raise InvalidInput(f"{op}: {name} has no dimensions.", do=f"Give {name} as (..., cols).")
    refuse_dtype(op, name, x)


def refuse_dtype(op: str, name: str, x: Tensor) -> None:
    """A tensor of a dtype that no op has."""
    if str(x.dtype).removeprefix("torch.") not in ALL_DTYPES:
        raise InvalidInput(f"{op}: {name} is {x.dtype}.", exists=f"Its dtypes: {', '.join(ALL_DTYPES)}.")


def refuse_unlike(op: str, name: str, tensor: Tensor, other_name: str, other: Tensor) -> None:
    """A tensor that is not of the other's shape, dtype and device."""
    if tensor.shape != other.shape:
        shapes = f"{name} has shape {tuple(tensor.shape)}, {other_name} has {tuple(other.shape)}"
        raise InvalidInput(f"{op}: {shapes}.", do="Give equal shapes; nothing is broadcast.")
    if tensor.dtype != other.dtype:
        raise InvalidInput(f"{op}: {name} is {tensor.dtype}, {other_name} is {other.dtype}.", do="Give both in one dtype.")
    refuse_elsewhere(op, name, tensor, other_name, other)


def refuse_elsewhere(op: str, name: str, tensor: Tensor, other_name: str, other: Tensor) -> None:
    """A tensor on another device."""
    if tensor.device != other.device:
        raise InvalidInput(f"{op}: {name} is on {tensor.device}, {other_name} on {other.device}.", do="Move one of them.")
