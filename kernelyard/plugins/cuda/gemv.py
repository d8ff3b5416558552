"""Entries of the CUDA products of few rows; the algorithm is told in gemv.cu."""

from __future__ import annotations

from typing import Any

from kernelyard.errors import Unsupported
from kernelyard.plugins.cuda.rows import ELEMENTS, hopper
from kernelyard.registry.backend import NativeSource
from kernelyard.registry.spec import Config, Workload

ACTIVATIONS = ("none", "relu", "gelu", "gelu_tanh", "silu")
"""In the order of their numbers in gemv.cu."""


def linear(workload: Workload, config: Config) -> NativeSource:
    """Matmul with b the transpose of a weight; raises Unsupported on a GPU without launches that overlap."""
    m, n, k = (workload.dim(name) for name in "mnk")
    a, b = workload["a"].strides, workload["b"].strides
    residual = workload["residual"].strides[-2:] if workload.has("residual") else (0, 0)
    fixed = (n, k, a[-2] if m > 1 else k, b[-1] if n > 1 else k, *residual)

    def arguments(
        outputs: tuple[Any, ...], a: Any, b: Any, bias: Any, residual: Any, scale: float, activation: str, precision: str
    ) -> tuple[Any, ...]:
        return outputs[0], a, b, bias, residual, scale, *fixed

    given = {**_defines(workload, config, m), "ACTIVATION": ACTIVATIONS.index(str(workload.static("activation"))), "GATED": 0}
    return NativeSource(("gemv.cu",), "linear", arguments, given)


def gated(workload: Workload, config: Config) -> NativeSource:
    """linear_swiglu; raises Unsupported as `linear` does."""
    rows, n, k = (workload.dim(name) for name in ("rows", "n", "k"))
    fixed = (n, k, workload["x"].strides[-2] if rows > 1 else k, workload["w"].strides[0] if n else k)

    def arguments(outputs: tuple[Any, ...], x: Any, w: Any) -> tuple[Any, ...]:
        return outputs[0], x, w, *fixed

    return NativeSource(("gemv.cu",), "gated", arguments, {**_defines(workload, config, rows), "ACTIVATION": 0, "GATED": 1})


def _defines(workload: Workload, config: Config, rows: int) -> dict[str, str | int]:
    if not hopper():
        raise Unsupported("a launch that overlaps the one before was asked for on an older GPU.", exists="It needs sm_90 or later.")
    element, warps = ELEMENTS[workload.dtype], int(config["warps"])
    return {
        "ELEMENT": element, "WEIGHT": element, "ROW_THREADS": 32 * warps, "CLUSTER": 1, "LOAD_CS": int(config["hint"] == "load"),
        "STORE_CS": 0, "OVERLAP": int(config["overlap"]), "AHEAD": int(config["overlap"]), "ROWS": max(rows, 1), "WARPS": warps,
        "UNROLL": int(config["unroll"]),
    }  # fmt: skip
