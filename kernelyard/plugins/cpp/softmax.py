"""Entries of the C++ softmax kernels; the algorithms are told in softmax_onepass.cpp, softmax_online.cpp and softmax_backward.cpp."""

from __future__ import annotations

from typing import Any

from kernelyard.registry.backend import NativeSource
from kernelyard.registry.spec import Config, Workload

FLAGS = ("-O2",)
"""The loops are vectors already: -O3 only takes longer to compile."""


def onepass(workload: Workload, config: Config) -> NativeSource:
    """Maximum, exponentials and scaling over a row in cache."""
    return _source("softmax_onepass.cpp", config, "accumulators")


def online(workload: Workload, config: Config) -> NativeSource:
    """Maximum and sum in one sweep, exponentials again in the second."""
    return _source("softmax_online.cpp", config, "block")


def backward(workload: Workload, config: Config) -> NativeSource:
    """The gradient, from the result."""
    tunables = tuple(int(config[name]) for name in ("threads", "rows_per_task", "streaming", "prefetch"))

    def arguments(outputs: tuple[Any, ...], dy: Any, y: Any) -> tuple[Any, ...]:
        return (outputs[0], dy, y, *tunables)

    return NativeSource(("softmax_backward.cpp",), "softmax_backward", arguments, flags=FLAGS)


def _source(file: str, config: Config, own: str) -> NativeSource:
    tunables = tuple(int(config[name]) for name in ("threads", "rows_per_task", own, "streaming", "prefetch"))

    def arguments(outputs: tuple[Any, ...], x: Any) -> tuple[Any, ...]:
        return (outputs[0], x, *tunables)

    return NativeSource((file,), "softmax", arguments, flags=FLAGS)
