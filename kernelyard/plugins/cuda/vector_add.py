"""Entry of the CUDA vector_add; the algorithm is told in vector_add.cu."""

from __future__ import annotations

from typing import Any

from kernelyard.registry.backend import NativeSource
from kernelyard.registry.spec import Config, Workload

ELEMENTS = {"float32": "float", "bfloat16": "__nv_bfloat16", "float16": "__half"}


def stream(workload: Workload, config: Config) -> NativeSource:
    """One build a dtype and config; n and addresses are looked at in the call."""
    defines: dict[str, str | int] = {
        "ELEMENT": ELEMENTS[workload.dtype],
        "THREADS": int(config["threads"]),
        "UNROLL": int(config["unroll"]),
        "STREAMING": int(config["streaming"]),
    }

    def arguments(outputs: tuple[Any, ...], a: Any, b: Any) -> tuple[Any, ...]:
        return outputs[0], a, b

    return NativeSource(("vector_add.cu",), "vector_add", arguments, defines)
