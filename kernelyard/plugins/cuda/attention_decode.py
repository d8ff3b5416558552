"""Entry of the CUDA attention over a cache; the algorithm is told in attention_decode.cu."""

from __future__ import annotations

from typing import Any

from kernelyard.errors import Unsupported
from kernelyard.plugins.cuda.rows import ELEMENTS, hopper
from kernelyard.registry.backend import NativeSource
from kernelyard.registry.spec import Config, Workload

WHOLE = 8
"""Elements of 16 bits in a piece that cp.async copies: what sequences or blocks start at multiples of."""

MAXIMUM_AND_SUM = 2
"""Floats that a part leaves beside the weighted values of a query row."""


def cluster(workload: Workload, config: Config) -> NativeSource:
    """The parts of a KV head's tokens to clusters; raises Unsupported where the GPU has none."""
    import torch

    if not hopper():
        raise Unsupported("a cluster of thread blocks was asked for on an older GPU.", exists="It needs sm_90 or later.")
    warps, capacity, head_dim = int(config["warps"]), workload.dim("capacity"), workload.dim("head_dim")
    element, parts = ELEMENTS[workload.dtype], int(config["parts"])
    left = workload.dim("batch") * workload.dim("q_heads") * workload.dim("q_len") * parts * (head_dim + MAXIMUM_AND_SUM)
    given: dict[str, str | int] = {
        "ELEMENT": element, "WEIGHT": element, "ROW_THREADS": 32 * warps, "CLUSTER": int(config["cluster"]), "LOAD_CS": 0, "STORE_CS": 0,
        "OVERLAP": int(config["overlap"]), "HEAD_DIM": head_dim, "WARPS": warps, "STAGES": int(config["stages"]),
        "TOKENS": int(config["tokens"]), "PAGED": int(workload.has("block_table")), "PARTS": parts, "EARLY": int(config["early"]),
    }  # fmt: skip

    def arguments(outputs: tuple[Any, ...], q: Any, k: Any, v: Any, lengths: Any, block_table: Any, scale: float | None) -> tuple[Any, ...]:
        by = scale if scale is not None else head_dim**-0.5
        scratch = torch.empty(left, dtype=torch.float32, device=q.device) if parts > 1 else None
        return outputs[0], q, _steady(k), _steady(v), lengths, block_table, scratch, capacity, by

    return NativeSource(("attention_decode.cu",), "attention_decode", arguments, given)


def _steady(cache: Any) -> Any:
    """The cache; a copy where its sequences or blocks do not start at multiples of 16 bytes, which no workload tells."""
    return cache if cache.shape[0] < 2 or cache.stride(0) % WHOLE == 0 else cache.contiguous()
