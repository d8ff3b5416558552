"""Entry of the C++ rope; the algorithm is told in rope.cpp."""

from __future__ import annotations

from typing import Any

from kernelyard.plugins.cpp.vector_add import FLAGS
from kernelyard.registry.backend import NativeSource
from kernelyard.registry.spec import Config, Workload


def tokens(workload: Workload, config: Config) -> NativeSource:
    """Heads of a token rotated by its row of the tables."""
    tunables = tuple(int(config[name]) for name in ("threads", "rows_per_task", "streaming", "prefetch"))

    def arguments(outputs: tuple[Any, ...], x: Any, cos: Any, sin: Any, positions: Any, style: str, inverse: bool) -> tuple[Any, ...]:
        return (outputs[0], x, cos, sin, positions, style == "interleaved", inverse, *tunables)

    return NativeSource(("rope.cpp",), "rope", arguments, flags=FLAGS)
