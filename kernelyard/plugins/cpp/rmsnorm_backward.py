"""Entries of the C++ gradients of rmsnorm and add_rmsnorm; the algorithm of both is told in rmsnorm_backward.cpp."""

from __future__ import annotations

from typing import Any

from kernelyard.plugins.cpp.rmsnorm import FLAGS
from kernelyard.registry.backend import NativeSource
from kernelyard.registry.spec import Config, Workload

SOURCES = ("rmsnorm_backward.cpp",)
TUNABLES = ("threads", "block", "streaming", "prefetch")


def rmsnorm_backward(workload: Workload, config: Config) -> NativeSource:
    """dx and dw, without a second gradient to add."""
    tunables = tuple(int(config[name]) for name in TUNABLES)

    def arguments(outputs: tuple[Any, ...], dy: Any, x: Any, w: Any, eps: float, offset: float, casting: str) -> tuple[Any, ...]:
        return (*outputs, dy, None, x, w, eps, offset, *tunables)

    return NativeSource(SOURCES, "rmsnorm_backward", arguments, flags=FLAGS)


def add_rmsnorm_backward(workload: Workload, config: Config) -> NativeSource:
    """The same with dr, which may be absent, added to dx."""
    tunables = tuple(int(config[name]) for name in TUNABLES)

    def arguments(outputs: tuple[Any, ...], dy: Any, dr: Any, r: Any, w: Any, eps: float, offset: float, casting: str) -> tuple[Any, ...]:
        return (*outputs, dy, dr, r, w, eps, offset, *tunables)

    return NativeSource(SOURCES, "rmsnorm_backward", arguments, flags=FLAGS)
