"""Typical inputs of `rope_attention_decode`, what they cost, how far a result may be off, frozen shapes and layouts.

How long sequences are follows from the workload and a seed, as for `attention_decode`: a cost is of the lengths that are timed.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kernelyard.contracts.attention import SHARPER
from kernelyard.contracts.attention_decode_inputs import FULL
from kernelyard.contracts.attention_points import Specs, attention_tolerance, bshd
from kernelyard.contracts.rope import BASE
from kernelyard.contracts.rows import ALL_DTYPES, EPSILON, points, random_tensor
from kernelyard.registry.lazy import torch
from kernelyard.registry.op import TIMED_SEED, Point
from kernelyard.registry.spec import DTYPE_BYTES, Cost, TensorSpec, Tolerance, Workload

if TYPE_CHECKING:
    from torch import Generator, Tensor

SPARE_POSITIONS = 3
"""Of typical tables, beyond the capacity."""


def full(workload: Workload) -> bool:
    """Whether typical sequences all fill their cache by the new token: what speed is measured on."""
    return workload.dim("capacity") % FULL == 0 and workload.dim("capacity") > 0


def lengths(workload: Workload, seed: int) -> tuple[int, ...]:
    """Tokens of each cache: all but one; or, where they differ, the first all but one, one without room, one of none, one negative, others
    random."""
    batch, capacity = workload.dim("batch"), workload.dim("capacity")
    if full(workload):
        return (capacity - 1,) * batch
    draw = random.Random(f"{seed} {batch} {capacity}").random  # Python keeps this sequence for a seed across versions
    special = {0: capacity - 1, 1: capacity, 2: 0, 4: -1}
    return tuple(special.get(b, int(draw() * capacity)) for b in range(batch))


def cost(workload: Workload) -> Cost:
    """Of the sequences that are timed: what each cache holds, read once for all heads that share it, and a token's part written."""
    held = [n for n in lengths(workload, TIMED_SEED) if 0 <= n < workload.dim("capacity")]
    q_heads, kv_heads, head_dim, size = *(workload.dim(name) for name in ("q_heads", "kv_heads", "head_dim")), DTYPE_BYTES[workload.dtype]
    moved = sum(2 * (n + 1) * kv_heads * head_dim * size + head_dim * DTYPE_BYTES[workload["cos"].dtype] for n in held)
    out = workload.dim("batch") * q_heads * head_dim * size
    turned = 3 * len(held) * (q_heads + kv_heads) * head_dim
    return Cost(bytes=workload["qkv"].nbytes + moved + out, flops=turned + 4 * sum(n + 1 for n in held) * q_heads * head_dim)


def inputs(workload: Workload, generator: Generator) -> tuple[Any, ...]:
    """Sequences of the `lengths` of the generator's seed; NaN where no token counts yet."""
    capacity, head_dim, device = workload.dim("capacity"), workload.dim("head_dim"), generator.device
    some = torch.tensor(lengths(workload, generator.initial_seed()), dtype=torch.int32, device=device)
    qkv, k, v = (random_tensor(workload[name], generator) for name in ("qkv", "k_cache", "v_cache"))
    unknown = torch.arange(capacity, device=device) >= some[:, None]
    for cache in (k, v):
        cache.masked_fill_(unknown[:, None, :, None], float("nan"))
    frequencies = BASE ** (-torch.arange(0, head_dim, 2, dtype=torch.float64, device=device) / max(head_dim, 1))
    angles = torch.arange(capacity + SPARE_POSITIONS, dtype=torch.float64, device=device)[:, None] * frequencies
    cos, sin = (_table(values, workload["cos"]) for values in (angles.cos(), angles.sin()))
    return qkv, k, v, some, cos, sin, SHARPER * max(head_dim, 1) ** -0.5


def _table(values: Tensor, spec: TensorSpec) -> Tensor:
    return values.to(getattr(torch, spec.dtype))


def tolerance(workload: Workload) -> Tolerance:
    """That of attention over rounded keys, twice its absolute part for halves: see the reason; the caches' behind it."""
    dtype, capacity, rounding, wide = workload.dtype, workload.dim("capacity"), EPSILON[workload.dtype], EPSILON["float32"]
    one = attention_tolerance(dtype, workload.dim("head_dim"), capacity, capacity if full(workload) else 1)
    key = Tolerance(
        1.01 * rounding + 4 * wide, 32 * wide,
        f"one rounding to {dtype} of {rounding:.1e}, two products and a sum in float32; absolute, for products of up to 10 that cancel", 1,
    )  # fmt: skip
    value = Tolerance(0.0, 0.0, "a copy")
    reason = (
        f"{one.reason}; twice as much, as the rotated query and key are rounded too: a score of deviation {SHARPER} is off by "
        f"{SHARPER} * 0.41 roundings for each of both, a weight by 0.41, and their squares add up to less than 4 times the last"
    )
    return replace(one, absolute=2 * one.absolute, reason=reason, roundings=one.roundings + (dtype != "float32"), others=(key, value))


# Layouts and frozen shapes ------------------------------------------------------------------------------


def _inside(specs: Specs) -> Specs:
    """Heads inside of tokens in the caches."""
    return {**specs, **{name: spec for name, spec in bshd(specs).items() if name.endswith("cache")}}


def _offset(specs: Specs) -> Specs:
    """qkv and caches one element past a 16-byte boundary."""
    return {name: replace(s, aligned=False) if s and name in ("qkv", "k_cache", "v_cache") else s for name, s in specs.items()}


def spread() -> Mapping[str, Callable[[Specs], Specs]]:
    """The op's own layouts."""
    return {"bshd": _inside, "offset": _offset}


@functools.cache
def fused_matrices() -> Mapping[str, tuple[Point, ...]]:
    """batch, heads of q and of k, capacity, head_dim: capacities around tiles and parts; Llama 3 1B's and 8B's where speed counts."""
    heads = ((1, 32, 8), (3, 8, 8), (5, 5, 1), (2, 28, 4), (6, 6, 2))
    some = tuple((*heads[i % 5], n, (64, 128)[i % 2]) for i, n in enumerate((1, 63, 64, 65, 129, 256, 1000, 1024)))
    rest = ((0, 4, 2, 16, 64), (2, 4, 2, 0, 64), (2, 3, 3, 50, 80), (1, 2, 1, 9, 6), (3, 24, 1, 70, 64))
    laid = tuple(Point((6, 6, 2, 130, 64), dtype, layout) for layout in ("bshd", "offset") for dtype in ALL_DTYPES)
    quick = ((1, 4, 2, 65, 64), (5, 5, 1, 130, 128), (2, 4, 2, 0, 64), (3, 2, 2, 17, 64))
    contexts, shapes = (128, 1024, 4096, 16384), ((32, 8, 64), (32, 8, 128))
    cuda = tuple((batch, q, kv, n, d) for q, kv, d in shapes for batch in (1, 8) for n in contexts)
    return {
        "correctness": points((*some, *rest), ALL_DTYPES) + laid,
        "smoke": (*points(quick, ("float32", "bfloat16")), *(point for point in laid if point.dtype == "float16")),
        "performance/cpu": points(((1, 32, 8, 1024, 64), (4, 8, 2, 512, 64)), ALL_DTYPES[:2]),
        "performance/cuda": points(cuda, ("bfloat16",)),
        "held_out/cpu": points(((2, 24, 8, 777, 128),), ALL_DTYPES[:2]),
        "held_out/cuda": points(((1, 28, 4, 9216, 128), (4, 16, 8, 3000, 128), (1, 12, 2, 2048, 64)), ("bfloat16",)),
    }
