"""Entry of the C++ add_rmsnorm; the algorithm is told in add_rmsnorm.cpp."""

from __future__ import annotations

from typing import Any

from kernelyard.plugins.cpp.rmsnorm import FLAGS
from kernelyard.registry.backend import NativeSource
from kernelyard.registry.spec import Config, Workload


def onepass(workload: Workload, config: Config) -> NativeSource:
    """One library for every dtype and config: all tunables are run-time numbers."""
    tunables = tuple(int(config[name]) for name in ("threads", "rows_per_task", "streaming", "prefetch"))

    def arguments(outputs: tuple[Any, ...], x: Any, residual: Any, w: Any, eps: float, offset: float, casting: str) -> tuple[Any, ...]:
        return (*outputs, x, residual, w, eps, offset, casting == "llama", *tunables)

    return NativeSource(("add_rmsnorm.cpp",), "add_rmsnorm", arguments, flags=FLAGS)
