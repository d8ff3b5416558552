"""Entry of the CUDA attention over a cache; the algorithm is told in attention_decode.cu."""

from __future__ import annotations

from typing import Any

from kernelyard.errors import Unsupported
from kernelyard.plugins.cuda.rows import ELEMENTS, hopper
from kernelyard.registry.backend import NativeSource
from kernelyard.registry.spec import Config, Workload

WHOLE = 8
"""Elements of 16 bits in a piece that cp.async copies: what sequences or blocks start at multiples of."""


def cluster(workload: Workload, config: Config) -> NativeSource:
    """The parts of a KV head's tokens to a cluster; raises Unsupported where the GPU has none."""
    if not hopper():
        raise Unsupported("a cluster of thread blocks was asked for on an older GPU.", exists="It needs sm_90 or later.")
    warps, capacity, head_dim = int(config["warps"]), workload.dim("capacity"), workload.dim("head_dim")
    element = ELEMENTS[workload.dtype]
    given: dict[str, str | int] = {
        "ELEMENT": element, "WEIGHT": element, "ROW_THREADS": 32 * warps, "CLUSTER": int(config["cluster"]), "LOAD_CS": 0, "STORE_CS": 0,
        "OVERLAP": int(config["overlap"]), "HEAD_DIM": head_dim, "WARPS": warps, "STAGES": int(config["stages"]),
        "TOKENS": int(config["tokens"]), "PAGED": int(workload.has("block_table")),
    }  # fmt: skip

    def arguments(outputs: tuple[Any, ...], q: Any, k: Any, v: Any, lengths: Any, block_table: Any, scale: float | None) -> tuple[Any, ...]:
        by = scale if scale is not None else head_dim**-0.5
        return outputs[0], q, _steady(k), _steady(v), lengths, block_table, capacity, by

    return NativeSource(("attention_decode.cu",), "attention_decode", arguments, given)


def _steady(cache: Any) -> Any:
    """The cache; a copy where its sequences or blocks do not start at multiples of 16 bytes, which no workload tells."""
    return cache if cache.shape[0] < 2 or cache.stride(0) % WHOLE == 0 else cache.contiguous()
