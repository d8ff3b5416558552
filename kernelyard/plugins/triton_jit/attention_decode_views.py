"""How attention_decode's kernels address a cache, and what of them is tuned, with the reason for each range."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kernelyard.plugins.triton_jit.norms import OVERLAP
from kernelyard.plugins.triton_jit.rows import DTYPES
from kernelyard.registry.kernel import Kernel, Support
from kernelyard.registry.space import ConfigSpace, Constraint, Parameter
from kernelyard.registry.spec import DTYPE_BYTES, Config, Determinism, Workload

if TYPE_CHECKING:
    from torch import Tensor

SHARED = 227 * 1024
"""Bytes of shared memory that a program may have on Hopper."""
MULTIPROCESSORS = 132
MANY_TASKS = 64
"""KV heads of all sequences from which on 4 programs a multiprocessor are best: 16 sequences of 4096 tokens take 74.9 us in 4 parts each,
85.5 in two, 98.9 whole (H200)."""
MOST_ROWS = 64
"""Query rows of a program: more would not fit its registers beside the values."""


@dataclass(frozen=True, slots=True)
class CacheView:
    """Strides in elements, in the kernel's order; `unit` divides all that a 16-byte access depends on."""

    unit: int
    strides: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class QueryRows:
    """The rows that share a KV head: `tiles` programs of `tile` of them."""

    tile: int
    tiles: int


def cache_view(workload: Workload) -> CacheView:
    """How a workload's tensors lie, without the strides between sequences or blocks: those are a call's."""
    q, k, v = workload["q"].strides, workload["k"].strides, workload["v"].strides
    table = workload["block_table"].strides if workload.has("block_table") else (0, 0)
    unit = math.gcd(k[1], k[2], v[1], v[2], 16) or 1
    return CacheView(unit, (*q[:3], *k[1:3], *v[1:3], *workload["lengths"].strides, *table))


def rows_of(workload: Workload) -> QueryRows:
    """Heads of a group times new tokens, 16 to 64 a program."""
    rows = workload.dim("q_heads") // max(workload.dim("kv_heads"), 1) * workload.dim("q_len")
    tile = min(max(1 << max(rows - 1, 0).bit_length(), 16), MOST_ROWS)
    return QueryRows(tile, max(-(-rows // tile), 1))


def steady(cache: Tensor, unit: int) -> Tensor:
    """The cache; a copy where its sequences or blocks do not start at multiples of `unit`, which no workload tells."""
    if cache.stride(0) % unit == 0 or cache.numel() == 0:
        return cache
    span = 1 + sum((size - 1) * stride for size, stride in zip(cache.shape[1:], cache.stride()[1:], strict=True))
    strides = (-(-span // unit) * unit, *cache.stride()[1:])
    return cache.new_empty_strided(cache.shape, strides).copy_(cache)


def _tasks(workload: Workload) -> int:
    return max(workload.dim("batch") * workload.dim("kv_heads") * rows_of(workload).tiles, 1)


def _head(workload: Workload) -> int:
    return max(1 << max(workload.dim("head_dim") - 1, 0).bit_length(), 16)


def _fits_shared(config: Config, workload: Workload) -> bool:
    tokens = 2 * int(config["tokens"]) * int(config["num_stages"]) + rows_of(workload).tile
    return tokens * _head(workload) * DTYPE_BYTES[workload.dtype] <= SHARED


def _parts_exist(config: Config, workload: Workload) -> bool:
    return config["parts"] == 1 or int(config["parts"]) * int(config["tokens"]) < 2 * workload.dim("capacity")


def _default(workload: Workload) -> Config:
    """As many parts as make a program for each multiprocessor, or 4 where KV heads are many; tokens so that three stages take 96 KiB."""
    bytes_a_token = _head(workload) * DTYPE_BYTES[workload.dtype]
    tokens = 64 if bytes_a_token <= 256 else 32 if bytes_a_token <= 512 else 16
    tasks = _tasks(workload)
    most = max((4 if tasks >= MANY_TASKS else 1) * MULTIPROCESSORS // tasks, 1)
    parts = max(p for p in (1, 2, 4, 8, 16, 32) if p <= most and (p == 1 or p * tokens < 2 * workload.dim("capacity")))
    return {"tokens": tokens, "parts": parts, "num_warps": 4, "num_stages": 3, "hint": "none", "overlap": True}


SPACE = ConfigSpace(
    (
        Parameter("tokens", (16, 32, 64, 128), "of a part at a time: with the stages, 20 KB and more in flight a multiprocessor"),
        Parameter("parts", (1, 2, 4, 8, 16, 32, 64), "of a sequence: 16 fill a GPU for 8 KV heads of one"),
        Parameter("num_warps", (2, 4, 8), "16 query rows are one warp's product, so warps divide tokens, then columns"),
        Parameter("num_stages", (2, 3, 4, 5), "tiles on their way while one is used, as many as shared memory holds"),
        Parameter("hint", ("none", "load"), "whether keys and values, which are read once, may push others out of L2"),
        OVERLAP,
    ),
    (
        Constraint(_fits_shared, "the tiles on their way pass 227 KiB of shared memory"),
        Constraint(_parts_exist, "over half of the parts would have no token"),
    ),
    _default,
)

KERNELS = (
    Kernel(
        name="triton.split",
        op="attention_decode",
        backend="triton",
        summary="split-KV: parts of a sequence once for all heads that share them, merged by a second launch",
        entry="kernelyard.plugins.triton_jit.attention_decode:split",
        support=Support(("cuda",), DTYPES, most={"head_dim": 256}),
        space=SPACE,
        files=("attention_decode_views.py", "overlap.py"),
        fallbacks=("torch.eager",),
        priority=15,
        determinism=Determinism.RUN_TO_RUN,
    ),
)
