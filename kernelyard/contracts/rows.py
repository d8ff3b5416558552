"""What row ops share as part of their meaning: frozen shapes (rows, cols) and typical inputs."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING

from kernelyard.registry.lazy import torch
from kernelyard.registry.op import Point
from kernelyard.registry.spec import TensorSpec

if TYPE_CHECKING:
    from torch import Generator, Tensor

ALL_DTYPES = ("float32", "bfloat16", "float16")
ROWS = (0, 1, 2, 7, 33, 128, 1000)
COLS = (1, 2, 31, 127, 128, 129, 768, 1000, 1024, 4095, 4096, 8192, 32768)
LAYOUT_SHAPES = ((33, 129), (7, 1024))

EPSILON = {"float32": 2.0**-24, "bfloat16": 2.0**-8, "float16": 2.0**-11, "float64": 2.0**-53}
"""Half a unit in the last place of 1.0, relative: the error of one rounding to nearest."""


def points(shapes: Sequence[tuple[int, int]], dtypes: Sequence[str]) -> tuple[Point, ...]:
    """Every shape in every dtype, contiguous."""
    return tuple(Point(shape, dtype) for shape, dtype in itertools.product(shapes, dtypes))


def row_matrices() -> dict[str, tuple[Point, ...]]:
    """The frozen matrices of an op over rows: sizes a CPU is used for, sizes a GPU is used for."""
    layouts = ("row_strided", "transposed", "broadcast", "offset")
    strided = tuple(Point(shape, dtype, layout) for layout in layouts for shape in LAYOUT_SHAPES for dtype in ALL_DTYPES)
    return {
        "correctness": points(tuple(itertools.product(ROWS, COLS)), ALL_DTYPES) + strided,
        "smoke": points(((0, 128), (1, 1), (2, 31), (7, 129), (33, 1000), (3, 4095)), ALL_DTYPES)
        + tuple(Point((7, 129), "float32", layout) for layout in layouts),
        "performance/cpu": points(((1, 4096), (16, 4096), (512, 1024), (512, 4096), (64, 32768), (1000, 4095)), ("float32",)),
        "performance/cuda": points(
            ((1, 4096), (16, 4096), (4096, 768), (8192, 1024), (8192, 4096), (16384, 4096), (4096, 8192), (2048, 32768),
             (32768, 128), (1000, 4095)),
            ("bfloat16",),
        ),
        "held_out/cpu": points(((4, 2048), (300, 5120), (37, 777)), ("float32",)),
        "held_out/cuda": points(((4, 2048), (3000, 5120), (12288, 2880), (777, 16384)), ("bfloat16",)),
    }  # fmt: skip


def random_tensor(spec: TensorSpec, generator: Generator, mean: float = 0.0, std: float = 1.0) -> Tensor:
    """Normal values in the layout of the spec, in memory of its own; a broadcast dimension holds one row."""
    span = 1 + sum((size - 1) * stride for size, stride in zip(spec.shape, spec.strides, strict=True)) if spec.numel else 0
    offset = 0 if spec.aligned else 1
    dtype = getattr(torch, spec.dtype)
    storage = torch.empty(span + offset, dtype=torch.float32, device=generator.device)
    storage.normal_(mean, std, generator=generator)
    return storage.to(dtype).as_strided(spec.shape, spec.strides, offset)
