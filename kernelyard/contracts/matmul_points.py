"""What ops of matrix products share: how far a sum may be off, frozen shapes, the layouts of operands."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Mapping
from dataclasses import replace

from kernelyard.contracts.rows import ALL_DTYPES, EPSILON, points
from kernelyard.registry.matrix import GIVEN
from kernelyard.registry.op import Point
from kernelyard.registry.spec import Scalar, TensorSpec

Specs = Mapping[str, TensorSpec | None]


def sum_error(dtype: str, terms: int) -> float:
    """By how much a float32 sum of products of size 1 / sqrt(terms), in any order, may be off; `dtype` is that of the factors, or 'tf32'.

    An adder rounds either way: 2 sqrt(terms) half units are five standard deviations. Tensor cores cut off, and so drift one way: half a
    half unit for each of the groups of eight terms and more that they add at once.
    """
    return EPSILON["float32"] * (16 + 2 * math.sqrt(terms) + (0 if dtype == "float32" else terms / 8))


def _turned(spec: TensorSpec) -> TensorSpec:
    """The transpose of a contiguous matrix of the turned shape."""
    *lead, rows, cols = spec.shape
    steps = tuple(stride for stride in spec.strides[:-2])
    return TensorSpec(spec.shape, spec.dtype, (*steps, 1, max(rows, 1)), spec.aligned) if lead or rows * cols else spec


def _linear(specs: Specs) -> Specs:
    return {name: _turned(spec) if spec and name == "b" else spec for name, spec in specs.items()}


def _a_transposed(specs: Specs) -> Specs:
    return {name: _turned(spec) if spec and name == "a" else spec for name, spec in specs.items()}


def _both_transposed(specs: Specs) -> Specs:
    return _linear(_a_transposed(specs))


def _gapped(specs: Specs) -> Specs:
    """Three elements behind every row: strides that TMA refuses, and 16-byte accesses that are nowhere aligned."""
    return {name: _with_gap(spec) if spec and name != "bias" else spec for name, spec in specs.items()}


def _with_gap(spec: TensorSpec) -> TensorSpec:
    *lead, rows, cols = spec.shape
    steps = ((cols + 3) * rows,) if lead else ()
    return TensorSpec(spec.shape, spec.dtype, (*steps, cols + 3, 1), spec.aligned)


def _offset(specs: Specs) -> Specs:
    return {name: replace(spec, aligned=False) if spec else spec for name, spec in specs.items()}


LAYOUTS = {
    "linear": _linear, "a_transposed": _a_transposed, "both_transposed": _both_transposed, "gapped": _gapped, "offset": _offset,
}  # fmt: skip


# Frozen shapes -----------------------------------------------------------------------------------------

EDGES = (1, 15, 16, 17, 63, 64, 65, 127, 128, 129, 255, 257, 1000)
SQUARE = ((1, 4096, 4096, 4096), (1, 8192, 8192, 8192), (1, 2048, 2048, 2048), (1, 8192, 14336, 4096), (1, 1024, 4096, 4096))
RAGGED = ((1, 127, 4096, 4096), (1, 4097, 4095, 4096), (1, 4096, 4096, 4095), (1, 4097, 4095, 4097))
DECODE = tuple((1, m, n, k) for m, n, k in (
    (16, 14336, 4096), (1, 14336, 4096), (1, 28672, 4096), (1, 4096, 14336), (1, 4096, 4096), (1, 6144, 4096), (1, 3072, 2048),
    (1, 2048, 2048), (1, 16384, 2048), (1, 2048, 8192), (1, 128256, 2048),
))  # fmt: skip
CPU_DECODE = ((1, 1, 4096, 4096), (1, 1, 3072, 2048), (1, 1, 2048, 8192), (1, 4, 2048, 2048), (1, 16, 2048, 2048))
EPILOGUES: tuple[tuple[tuple[str, Scalar], ...], ...] = (
    (("bias", GIVEN),), (("activation", "gelu"), ("bias", GIVEN)), (("activation", "gelu_tanh"), ("bias", GIVEN), ("residual", GIVEN)),
    (("activation", "silu"),), (("activation", "relu"), ("residual", GIVEN)), (("precision", "tf32"),),
)  # fmt: skip
FUSED = (Point((1, 8192, 14336, 4096), "bfloat16", statics=EPILOGUES[1]),)


def _edge_shapes() -> tuple[tuple[int, ...], ...]:
    """A spread over the cube of tile edges, every value in every place, and all three sizes coprime in their steps; then what is empty."""
    count = len(EDGES)
    spread = tuple((1, EDGES[i], EDGES[(5 * i + j) % count], EDGES[(3 * i + 4 * j) % count]) for i in range(count) for j in (0, 4, 9))
    empty = tuple((1, *sizes) for sizes in ((0, 16, 64), (16, 0, 64), (17, 65, 0), (0, 0, 0)))
    batched = ((0, 3, 4, 5), (2, 17, 33, 65), (3, 1, 64, 128), (4, 128, 64, 16), (2, 5, 7, 0))
    return (*spread, *empty, *batched, (1, 33, 17, 1001), (1, 16, 32, 16384))


def _in(layouts: tuple[str, ...], shapes: tuple[tuple[int, ...], ...], dtypes: tuple[str, ...]) -> tuple[Point, ...]:
    return tuple(Point(shape, dtype, layout) for shape, dtype, layout in itertools.product(shapes, dtypes, layouts))


@functools.cache
def matmul_matrices() -> Mapping[str, tuple[Point, ...]]:
    """matmul's: tile edges and layouts to be right on; squares, ragged sizes and the linear layers of decoders where speed counts."""
    laid_out = _in(tuple(LAYOUTS), ((1, 33, 65, 129), (1, 1, 127, 1000), (1, 16, 128, 64), (2, 17, 33, 65)), ALL_DTYPES)
    few = (1, 1, 2, 3, 4, 5, 7, 8, 11, 15, 16, 16)
    few_rows = tuple((1, m, EDGES[(3 * i + 1) % 13], EDGES[(5 * i + 6) % 13]) for i, m in enumerate(few))
    endings = tuple(
        Point(shape, dtype, layout, ending)
        for shape, layout in (((1, 33, 65, 129), "contiguous"), ((1, 1, 127, 1000), "linear"), ((2, 7, 9, 0), "contiguous"))
        for dtype in ALL_DTYPES for ending in EPILOGUES if dtype == "float32" or ending != (("precision", "tf32"),)
    )  # fmt: skip
    return {
        "correctness": points(_edge_shapes(), ALL_DTYPES) + laid_out + _in(("linear",), few_rows, ALL_DTYPES) + endings,
        "smoke": points(((1, 0, 3, 4), (1, 1, 1, 1), (1, 17, 33, 65), (2, 5, 7, 0), (2, 17, 3, 16)), ALL_DTYPES)
        + _in(tuple(LAYOUTS), ((1, 16, 33, 129),), ("bfloat16",)) + _in(("linear",), ((1, 1, 127, 1000),), ALL_DTYPES)
        + tuple(Point((1, 33, 65, 129), "float16", statics=ending) for ending in EPILOGUES[:-1])
        + _in(("contiguous", "linear", "a_transposed", "both_transposed"), ((1, 40, 72, 136),), ("bfloat16",))
        + (Point((1, 40, 72, 136), "float16", statics=EPILOGUES[2]),),
        "performance/cpu": _in(("linear",), CPU_DECODE, ("float32", "bfloat16")) + points(((1, 256, 512, 512),), ("float32", "bfloat16")),
        "performance/cuda": points(SQUARE, ("bfloat16",)) + FUSED
        + points(RAGGED, ("bfloat16",)) + _in(("linear",), DECODE, ("bfloat16",)),
        "held_out/cpu": _in(("linear",), ((1, 1, 5120, 3072), (1, 8, 1024, 1536)), ("float32", "bfloat16")),
        "held_out/cuda": points(((1, 3072, 5120, 6144), (1, 777, 4096, 4096), (1, 4095, 4093, 4099)), ("bfloat16",))
        + _in(("linear",), ((1, 1, 5120, 3072), (1, 8, 8192, 2048)), ("bfloat16",)),
    }  # fmt: skip
