"""Entries of the C++ linear layers for few rows; the algorithm of both is told in linear.h."""

from __future__ import annotations

from typing import Any

from kernelyard.plugins.cpp.vector_add import FLAGS
from kernelyard.registry.backend import NativeSource
from kernelyard.registry.spec import Config, Workload

ACTIVATIONS = ("none", "relu", "gelu", "gelu_tanh", "silu")
"""In the order of activation.h."""


def rows(workload: Workload, config: Config) -> NativeSource:
    """act(a @ b + bias) * scale + residual, b being the transpose of a linear layer's weight."""
    tunables = (int(config["threads"]), int(config["streams"]))

    def arguments(
        outputs: tuple[Any, ...], a: Any, b: Any, bias: Any, residual: Any, scale: float, activation: str, precision: str
    ) -> tuple[Any, ...]:
        return (outputs[0], a, b, bias, residual, scale, ACTIVATIONS.index(activation), *tunables)

    return NativeSource(("linear.cpp",), "linear", arguments, flags=FLAGS)


def gated(workload: Workload, config: Config) -> NativeSource:
    """silu(x @ g.T) * (x @ u.T)."""
    tunables = (int(config["threads"]), int(config["streams"]))

    def arguments(outputs: tuple[Any, ...], x: Any, w: Any) -> tuple[Any, ...]:
        return (outputs[0], x, w, *tunables)

    return NativeSource(("linear.cpp",), "linear_swiglu", arguments, flags=FLAGS)
