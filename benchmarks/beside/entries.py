"""The kernels' entries for kernelyard's backends."""

from __future__ import annotations

from typing import Any

from kernelyard.registry.backend import NativeSource, TritonLaunch
from kernelyard.registry.spec import Config, Workload


def cuda(workload: Workload, config: Config) -> NativeSource:
    """One build a config; its name in upper case is its define."""
    return _native("rmsnorm.cu", workload, config)


def cpp(workload: Workload, config: Config) -> NativeSource:
    """One build a config."""
    return _native("rmsnorm.cpp", workload, config)


def _native(file: str, workload: Workload, config: Config) -> NativeSource:
    rows = workload.dim("rows")
    defines: dict[str, str | int] = {name.upper(): int(value) for name, value in config.items()}

    def arguments(outputs: tuple[Any, ...], x: Any, w: Any, eps: float, offset: float, casting: str) -> tuple[Any, ...]:
        return outputs[0], x, w, rows, eps, offset

    return NativeSource((file,), "rmsnorm", arguments, {**defines, "COLS": workload.dim("cols")})


def triton(workload: Workload, config: Config) -> TritonLaunch:
    """A program for every `rows` rows."""
    from beside.triton_rmsnorm import normalise

    rows, together = workload.dim("rows"), int(config["rows"])

    def arguments(outputs: tuple[Any, ...], x: Any, w: Any, eps: float, offset: float, casting: str) -> tuple[Any, ...]:
        return outputs[0], x, w, rows, float(eps), float(offset)

    constants = {"COLS": workload.dim("cols"), "ROWS": together, "HINT": config["hint"], "EARLY": config["early"]}
    return TritonLaunch(normalise, (-(-rows // together), 1, 1), arguments, constants, num_warps=int(config["num_warps"]))
