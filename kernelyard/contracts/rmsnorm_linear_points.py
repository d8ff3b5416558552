"""What a norm with linear layers behind it shares: how far its roundings move a result, and frozen shapes."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import replace

from kernelyard.contracts.linear_swiglu import LINEAR_SWIGLU
from kernelyard.contracts.rows import EPSILON, points
from kernelyard.registry.matrix import GIVEN
from kernelyard.registry.op import Point

NORM_ROUNDINGS = 2
"""Of Llama's casting: x / rms, then that times the weight."""
CONSTANT = (("constant_weights", True),)
BIAS = (("bias", GIVEN),)


def norm_error(dtype: str) -> float:
    """By how much a sum of size 1 of rounded factors may be off: terms wander, so errors add as squares.

    A rounding is off by 0.41 half units in the root mean square, the factor by two of them by 0.58, and five standard deviations are 2.9.
    """
    return 3 * EPSILON[dtype]


def _constant(shapes: tuple[tuple[int, ...], ...]) -> tuple[Point, ...]:
    return tuple(replace(point, statics=CONSTANT) for point in points(shapes, ("bfloat16",)))


def _frozen(cuda: tuple[tuple[int, ...], ...], held_out: tuple[tuple[int, ...], ...]) -> dict[str, tuple[Point, ...]]:
    """The points of linear_swiglu where results are compared and on a CPU; on a GPU the weights of a model that serves."""
    named = LINEAR_SWIGLU.matrices
    early = tuple(replace(point, statics=CONSTANT) for point in named["smoke"] if point.dims[0] and point.layout != "offset")
    return {
        **named,
        "correctness": named["correctness"] + early,
        "smoke": named["smoke"] + early[2:6],
        "performance/cuda": _constant(cuda),
        "held_out/cuda": _constant(held_out),
    }


@functools.cache
def linear_matrices() -> Mapping[str, tuple[Point, ...]]:
    """Query, key and value projections of Llama 3 1B and 8B, one sequence and eight; biases as Qwen2 has them."""
    frozen = _frozen(
        ((1, 3072, 2048), (8, 3072, 2048), (1, 6144, 4096), (8, 6144, 4096)), ((1, 2048, 1536), (4, 5120, 3072), (16, 3072, 2048))
    )
    biased = tuple(Point((rows, 33, 65), dtype, statics=BIAS) for rows in (1, 7) for dtype in ("float32", "bfloat16", "float16"))
    return {**frozen, "correctness": frozen["correctness"] + biased, "smoke": frozen["smoke"] + biased[::2]}


@functools.cache
def gated_matrices() -> Mapping[str, tuple[Point, ...]]:
    """Gate and up projections of the same models."""
    return _frozen(
        ((1, 8192, 2048), (8, 8192, 2048), (1, 14336, 4096), (8, 14336, 4096)), ((1, 8960, 1536), (4, 8192, 3072), (16, 8192, 2048))
    )
