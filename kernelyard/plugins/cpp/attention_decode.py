"""Entry of the C++ attention over a cache; the algorithm is told in attention_decode.cpp."""

from __future__ import annotations

from typing import Any

from kernelyard.plugins.cpp.vector_add import FLAGS
from kernelyard.registry.backend import NativeSource
from kernelyard.registry.spec import Config, Workload


def split(workload: Workload, config: Config) -> NativeSource:
    """A KV head of a sequence at a time, its tokens in `parts`."""
    tunables = (int(config["threads"]), int(config["parts"]), int(config["streams"]))

    def arguments(outputs: tuple[Any, ...], q: Any, k: Any, v: Any, lengths: Any, block_table: Any, scale: float | None) -> tuple[Any, ...]:
        return (outputs[0], q, k, v, lengths, block_table, scale if scale is not None else max(q.shape[-1], 1) ** -0.5, *tunables)

    return NativeSource(("attention_decode.cpp",), "attention_decode", arguments, flags=FLAGS)
