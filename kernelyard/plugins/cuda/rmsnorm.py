"""Entries of the CUDA rmsnorm and add_rmsnorm; the algorithms are told in rmsnorm.cu, rmsnorm_ring.cu and rmsnorm_staged.cu."""

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

    def arguments(outputs: tuple[Any, ...], x: Any, w: Any, eps: float, offset: float, casting: str) -> tuple[Any, ...]:
        return outputs[0], x, x if w is None else w, *sizes[:3], eps, offset, sizes[3]

    return NativeSource(("rmsnorm_ring.cu",), "rmsnorm_ring", arguments, {**rings.given(workload, config), **_meaning(workload)})


def staged(workload: Workload, config: Config) -> NativeSource:
    """A row to each cluster of blocks, in their shared memory."""
    rows, cols, between = workload.dim("rows"), workload.dim("cols"), stride(workload["x"], workload)

    def arguments(outputs: tuple[Any, ...], x: Any, w: Any, eps: float, offset: float, casting: str) -> tuple[Any, ...]:
        return outputs[0], x, x if w is None else w, rows, cols, between, eps, offset

    given = {**stages.given(workload, config), **_meaning(workload), "ADDED": 0}
    return NativeSource(("rmsnorm_staged.cu",), "rmsnorm_staged", arguments, given)


def added(workload: Workload, config: Config) -> NativeSource:
    """add_rmsnorm: x and residual of a row beside each other in shared memory."""
    sizes = (workload.dim("rows"), workload.dim("cols"), stride(workload["x"], workload), stride(workload["residual"], workload))

    def arguments(
        outputs: tuple[Any, ...], x: Any, residual: Any, w: Any, eps: float, offset: float, casting: str
    ) -> tuple[Any, ...]:
        return outputs[0], outputs[1], x, residual, x if w is None else w, *sizes, eps, offset

    given = {**stages.given(workload, config), **_meaning(workload), "ADDED": 1}
    return NativeSource(("rmsnorm_staged.cu",), "add_rmsnorm_staged", arguments, given)


def _source(workload: Workload, config: Config, rows_a_block: int, each: int) -> NativeSource:
    given = {
        **defines(workload, config), **_meaning(workload), "ROWS": rows_a_block, "EACH": each, "EARLY": int(config["weight"] == "early"),
    }  # fmt: skip
    rows, cols, between = workload.dim("rows"), workload.dim("cols"), stride(workload["x"], workload)

    def arguments(outputs: tuple[Any, ...], x: Any, w: Any, eps: float, offset: float, casting: str) -> tuple[Any, ...]:
        return outputs[0], x, x if w is None else w, rows, cols, between, eps, offset

    return NativeSource(("rmsnorm.cu",), "rmsnorm", arguments, given)


def _meaning(workload: Workload) -> dict[str, str | int]:
    return {"HAS_WEIGHT": int(workload.has("w")), "LLAMA": int(workload.static("casting") == "llama")}
