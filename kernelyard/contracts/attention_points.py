"""What ops of attention share: how far a result may be off, frozen shapes, the layouts of heads."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import replace

from kernelyard.contracts.rows import ALL_DTYPES, EPSILON, SMALLEST, points
from kernelyard.registry.op import Point
from kernelyard.registry.spec import TensorSpec, Tolerance

Specs = Mapping[str, TensorSpec | None]


def attention_tolerance(dtype: str, head_dim: int, most: int, fewest: int) -> Tolerance:
    """Of rows that see from `fewest` to `most` keys.

    A weight is off by a rounding of itself, and the sum of n weighted values by the less the more keys share the weight. With scores
    of deviation 1.5 (the contracts' inputs) the worst of 10^5 rows, whose weight lies on few keys, falls as n^(-3/8): bfloat16
    weights, simulated at 16 to 4096 keys, were off by at most 4.7 roundings times n^(-3/8); 6 are allowed.
    """
    rounding, wide = EPSILON[dtype], EPSILON["float32"]
    weights = 0.0 if dtype == "float32" else rounding * min(3.0, 6 * max(fewest, 1) ** -0.375)
    exponents, sums = wide * (64 + 4 * head_dim**0.5), wide * 2 * max(most, 1) ** 0.5
    return Tolerance(
        1.01 * rounding + exponents,
        weights + 4 * exponents + sums + SMALLEST[dtype],
        f"one rounding to {dtype} of {rounding:.1e}; absolute, {weights:.1e} for weights that are rounded too, in the row "
        f"that leans most on few of its {fewest} keys, {exponents:.1e} for float32 scores of {head_dim} products, of up to 8, and their "
        f"exponentials, and {sums:.1e} for sums of {most} terms",
        1 if dtype == "float32" else 2,
        (_of_the_logarithm(exponents, sums),),
    )


def _of_the_logarithm(exponents: float, sums: float) -> Tolerance:
    reason = f"float32 scores, {exponents:.1e}, and the logarithm of a sum that is off by {sums:.1e} of itself"
    return Tolerance(4 * EPSILON["float32"], 4 * exponents + sums, reason, 0)


def bshd(specs: Specs) -> Specs:
    """Heads inside of tokens, as a projection leaves them: (batch, length, heads, head_dim) seen as (batch, heads, length, head_dim)."""
    return {name: _heads_inside(spec) if spec and len(spec.shape) == 4 else spec for name, spec in specs.items()}


def _heads_inside(spec: TensorSpec) -> TensorSpec:
    _, heads, length, head_dim = spec.shape
    return TensorSpec(spec.shape, spec.dtype, (length * heads * head_dim, head_dim, heads * head_dim, 1), spec.aligned)


def offset(specs: Specs) -> Specs:
    """Heads that start one element past a 16-byte boundary."""
    return {name: replace(spec, aligned=False) if spec and len(spec.shape) == 4 else spec for name, spec in specs.items()}


LENGTHS = (1, 63, 64, 65, 127, 129, 256, 1000, 1024)
CAUSAL, LSE = ("causal", True), ("return_lse", True)


def attention_matrices() -> Mapping[str, tuple[Point, ...]]:
    """Lengths around tiles with the heads of small models, pairs of lengths that differ both ways, few heads where sequences are long."""
    square = tuple((1, *heads, n, n, d) for n in LENGTHS for heads, d in (((4, 1), 64), ((2, 2), 128)) if n <= 256 or heads == (4, 1))
    pairs = tuple((2, 3, 1, q, k, 64) for q, k in itertools.permutations((1, 65, 129, 200), 2))
    unlike = (*pairs, (1, 2, 1, 1, 1024, 128), (1, 2, 1, 300, 7, 64))
    heads = (
        (1, 32, 8, 65, 65, 64),
        (1, 8, 8, 33, 70, 128),
        (1, 5, 1, 17, 129, 64),
        (1, 28, 4, 3, 64, 64),
        (1, 7, 1, 64, 64, 128),
        (3, 6, 3, 9, 9, 64),
    )
    empty = ((0, 4, 2, 8, 8, 64), (2, 4, 2, 0, 8, 64), (2, 4, 2, 8, 0, 64), (1, 2, 2, 0, 0, 128))
    odd = ((1, 2, 1, 33, 50, 80), (1, 2, 2, 16, 16, 32), (1, 1, 1, 9, 9, 7))
    some = (*square, *unlike, *heads, *empty, *odd)
    both = tuple(replace(p, statics=s) for p in points(some, ALL_DTYPES) for s in ((CAUSAL, LSE), (LSE,) if p.dims[3] != p.dims[4] else ()))
    laid = tuple(
        Point((2, 6, 2, 65, 130, 64), dtype, layout, statics)
        for layout in ("bshd", "offset") for dtype in ALL_DTYPES for statics in ((), (CAUSAL, LSE))
    )  # fmt: skip
    quick = ((1, 2, 1, 65, 65, 64), (2, 3, 1, 17, 70, 64), (1, 2, 2, 33, 5, 128), (2, 2, 1, 0, 8, 64), (2, 2, 1, 8, 0, 64))
    cuda = ((2, 32, 32, 4096, 128), (2, 32, 8, 4096, 128), (1, 32, 8, 16384, 128), (4, 32, 8, 1024, 128), (8, 32, 8, 256, 128),
            (2, 32, 32, 4096, 64), (4, 16, 16, 65, 64))  # fmt: skip
    return {
        "correctness": both + laid,
        "smoke": (
            *(Point(shape, dtype, statics=s) for shape in quick for dtype in ("float32", "bfloat16") for s in ((), (CAUSAL, LSE))),
            *(point for point in laid if point.dtype == "float16"),
        ),
        "performance/cpu": tuple(Point((1, 8, 2, n, n, 64), dtype, statics=(CAUSAL,)) for n in (128, 512) for dtype in ALL_DTYPES[:2]),
        "performance/cuda": tuple(Point((b, h, g, s, s, d), "bfloat16", statics=(CAUSAL,)) for b, h, g, s, d in cuda)
        + points(((2, 32, 8, 4096, 4096, 128),), ("bfloat16",)),
        "held_out/cpu": (Point((1, 8, 2, 300, 300, 64), "float32", statics=(CAUSAL,)),),
        "held_out/cuda": tuple(
            Point(shape, "bfloat16", statics=(CAUSAL,))
            for shape in ((1, 24, 8, 3000, 3000, 128), (4, 16, 4, 777, 2048, 128), (2, 32, 8, 2048, 2048, 64))
        ),
    }  # fmt: skip


def decode_matrices() -> Mapping[str, tuple[Point, ...]]:
    """Capacities around tiles and splits, few and many sequences, new tokens of more than one, blocks of several sizes; batch, heads of q
    and of k, new tokens, capacity, head_dim, block size."""
    heads = ((1, 32, 8), (3, 8, 8), (2, 5, 1), (1, 28, 4), (4, 6, 2))
    some = tuple((*heads[i % 5], 1, n, (64, 128)[i % 2], 0) for i, n in enumerate((1, 63, 64, 65, 127, 129, 256, 1000, 1024, 2048)))
    several = tuple((*heads[i], q_len, n, 64, 0) for i, (q_len, n) in enumerate(((2, 65), (16, 16), (5, 3), (7, 300), (3, 1024))))
    paged = ((3, 8, 2, 1, 64, 64, 16), (2, 4, 4, 3, 387, 128, 129), (4, 6, 2, 1, 512, 64, 64), (5, 4, 1, 2, 20, 64, 1),
             (1, 8, 8, 1, 1024, 128, 256), (3, 6, 3, 3, 12, 64, 4))  # fmt: skip
    empty = ((0, 4, 2, 1, 16, 64, 0), (2, 4, 2, 1, 0, 64, 0), (2, 4, 2, 0, 16, 64, 0), (2, 4, 2, 1, 0, 64, 16))
    odd = ((2, 3, 3, 1, 50, 80, 0), (1, 2, 1, 1, 9, 7, 0), (1, 24, 1, 1, 70, 64, 0))
    shapes = ((3, 6, 2, 2, 130, 64, 0), (2, 8, 2, 1, 48, 128, 16))
    laid = tuple(Point(shape, dtype, layout) for layout in ("bshd", "offset") for dtype in ALL_DTYPES for shape in shapes)
    quick = ((1, 4, 2, 1, 65, 64, 0), (3, 5, 1, 1, 130, 128, 0), (2, 4, 4, 3, 40, 64, 8), (2, 4, 2, 1, 0, 64, 0), (4, 2, 1, 2, 17, 64, 0))
    cuda = ((1, 32, 8, 1, 1024, 128, 0), (1, 32, 8, 1, 4096, 128, 0), (1, 32, 8, 1, 32768, 128, 0), (16, 32, 8, 1, 4096, 128, 0),
            (64, 32, 8, 1, 4096, 128, 0), (16, 32, 8, 1, 4096, 128, 64), (16, 32, 8, 1, 4100, 128, 0))  # fmt: skip
    return {
        "correctness": points((*some, *several, *paged, *empty, *odd), ALL_DTYPES) + laid,
        "smoke": (*points(quick, ("float32", "bfloat16")), *(point for point in laid if point.dtype == "float16")),
        "performance/cpu": points(((1, 32, 8, 1, 1024, 128, 0), (4, 8, 2, 1, 512, 64, 0), (1, 32, 8, 1, 1024, 64, 64)), ALL_DTYPES[:2]),
        "performance/cuda": points(cuda, ("bfloat16",)),
        "held_out/cpu": points(((2, 24, 8, 1, 777, 128, 0),), ALL_DTYPES[:2]),
        "held_out/cuda": points(((1, 24, 8, 1, 9216, 128, 0), (8, 16, 4, 1, 3000, 128, 0), (32, 32, 8, 1, 2048, 64, 16)), ("bfloat16",)),
    }
