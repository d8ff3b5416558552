"""Entry of the C++ vector_add; the algorithm is told in vector_add.cpp."""

from __future__ import annotations

from typing import Any

from kernelyard.registry.backend import NativeSource
from kernelyard.registry.spec import Config, Workload

FLAGS = ("-O2",)
"""The loops are vectors already: -O3 only takes longer to compile."""


def stream(workload: Workload, config: Config) -> NativeSource:
    """Pieces of 1024 elements spread over threads."""
    tunables = tuple(int(config[name]) for name in ("threads", "rows_per_task", "streaming"))

    def arguments(outputs: tuple[Any, ...], a: Any, b: Any) -> tuple[Any, ...]:
        return (outputs[0], a, b, *tunables)

    return NativeSource(("vector_add.cpp",), "vector_add", arguments, flags=FLAGS)
