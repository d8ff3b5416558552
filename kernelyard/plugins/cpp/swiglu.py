"""Entries of the C++ swiglu and its gradient; the algorithm of both is told in swiglu.cpp."""

from __future__ import annotations

from typing import Any

from kernelyard.plugins.cpp.vector_add import FLAGS
from kernelyard.registry.backend import NativeSource
from kernelyard.registry.spec import Config, Workload

TUNABLES = ("threads", "rows_per_task", "streaming")


def forward(workload: Workload, config: Config) -> NativeSource:
    """silu(a) * b, from two tensors or one packed."""
    tunables = tuple(int(config[name]) for name in TUNABLES)

    def arguments(outputs: tuple[Any, ...], a: Any, b: Any) -> tuple[Any, ...]:
        return (outputs[0], a, b, *tunables)

    return NativeSource(("swiglu.cpp",), "swiglu", arguments, flags=FLAGS)


def backward(workload: Workload, config: Config) -> NativeSource:
    """da and db, apart or packed."""
    tunables = tuple(int(config[name]) for name in TUNABLES)

    def arguments(outputs: tuple[Any, ...], dy: Any, a: Any, b: Any) -> tuple[Any, ...]:
        return (*outputs, dy, a, b, *tunables)

    return NativeSource(("swiglu.cpp",), "swiglu_backward", arguments, flags=FLAGS)
