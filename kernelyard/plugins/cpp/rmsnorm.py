"""Entry of the C++ rmsnorm; the algorithm is told in rmsnorm.cpp."""

from __future__ import annotations

from typing import Any

from kernelyard.registry.backend import NativeSource
from kernelyard.registry.spec import Config, Workload

FLAGS = ("-O2",)
"""The loops are vectors already: -O3 took 1.3x as long to compile and was no faster."""


def onepass(workload: Workload, config: Config) -> NativeSource:
    """One library for every dtype and config: all tunables are run-time numbers, so tuning compiles once."""
    names = ("threads", "rows_per_task", "accumulators", "streaming", "prefetch")
    tunables = tuple(int(config[name]) for name in names)

    def arguments(outputs: tuple[Any, ...], x: Any, w: Any, eps: float, offset: float, casting: str) -> tuple[Any, ...]:
        return (outputs[0], x, w, eps, offset, casting == "llama", *tunables)

    return NativeSource(("rmsnorm.cpp",), "rmsnorm", arguments, flags=FLAGS)
