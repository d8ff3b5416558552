"""Three CUDA kernels of vector_add for compute-sanitizer: a right one, a store out of bounds, a race on shared memory."""

from __future__ import annotations

from typing import Any

from kernelyard.registry.backend import NativeSource
from kernelyard.registry.discovery import Plugin
from kernelyard.registry.kernel import Kernel, Support
from kernelyard.registry.spec import Config, Workload

FAULTS = {"right": 0, "overrun": 1, "race": 2}


def source(fault: int) -> NativeSource:
    def arguments(outputs: tuple[Any, ...], a: Any, b: Any) -> tuple[Any, ...]:
        return outputs[0], a, b

    return NativeSource(("planted_cuda.cu",), "vector_add", arguments, {"FAULT": fault})


def right(workload: Workload, config: Config) -> NativeSource:
    return source(0)


def overrun(workload: Workload, config: Config) -> NativeSource:
    return source(1)


def race(workload: Workload, config: Config) -> NativeSource:
    return source(2)


def _kernel(name: str) -> Kernel:
    support = Support(("cuda",), ("float32",), contiguous=True)
    return Kernel(f"cuda.{name}", "vector_add", "cuda", "for the sanitizer", f"tests.verify.planted_cuda:{name}", support)


plugin = Plugin("planted_cuda", kernels=tuple(map(_kernel, FAULTS)))
