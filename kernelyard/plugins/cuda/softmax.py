"""Entries of the CUDA softmax; the algorithms are told in softmax.cu, softmax_ring.cu and softmax_staged.cu."""

from __future__ import annotations

from typing import Any

from kernelyard.plugins.cuda import ring as rings
from kernelyard.plugins.cuda import staged as stages
from kernelyard.plugins.cuda.rows import defines, stride
from kernelyard.registry.backend import NativeSource
from kernelyard.registry.spec import Config, Workload


def row(workload: Workload, config: Config) -> NativeSource:
    """`rows` groups of threads a block, each with `each` rows."""
    return _source(workload, config, int(config["rows"]), int(config["each"]))


def cluster(workload: Workload, config: Config) -> NativeSource:
    """A row to each cluster of blocks."""
    return _source(workload, config, 1, 1)


def ring(workload: Workload, config: Config) -> NativeSource:
    """A persistent grid of blocks, each with a ring of rows."""
    sizes = rings.shape(workload)

    def arguments(outputs: tuple[Any, ...], x: Any) -> tuple[Any, ...]:
        return outputs[0], x, *sizes

    return NativeSource(("softmax_ring.cu",), "softmax_ring", arguments, rings.given(workload, config))


def staged(workload: Workload, config: Config) -> NativeSource:
    """A row to each cluster of blocks, in their shared memory."""
    rows, cols, between = workload.dim("rows"), workload.dim("cols"), stride(workload["x"], workload)
    given = {**stages.given(workload, config), "KEPT": int(config["second"] == "kept")}

    def arguments(outputs: tuple[Any, ...], x: Any) -> tuple[Any, ...]:
        return outputs[0], x, rows, cols, between

    return NativeSource(("softmax_staged.cu",), "softmax_staged", arguments, given)


def _source(workload: Workload, config: Config, rows_a_block: int, each: int) -> NativeSource:
    given = {**defines(workload, config), "ROWS": rows_a_block, "EACH": each}
    rows, cols, between = workload.dim("rows"), workload.dim("cols"), stride(workload["x"], workload)

    def arguments(outputs: tuple[Any, ...], x: Any) -> tuple[Any, ...]:
        return outputs[0], x, rows, cols, between

    return NativeSource(("softmax.cu",), "softmax", arguments, given)
