"""The entries of the kernels, imported when one is built."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from kernelyard.registry.backend import NativeSource
from kernelyard.registry.spec import Config, Workload


def rmsnorm_lanes(workload: Workload, config: Config) -> NativeSource:
    """`lanes` selects code and so is a define; `threads` is an argument, and costs no build of its own."""
    threads = int(config["threads"])

    def arguments(outputs: Any, x: Any, w: Any, eps: float, offset: float, casting: str) -> tuple[Any, ...]:
        # in float32 both castings round alike, so `casting` has nothing to say
        return outputs[0], x, w, eps, offset, threads

    return NativeSource(("rmsnorm_lanes.cpp",), "rmsnorm_lanes", arguments, defines={"LANES": int(config["lanes"])})


def squared_relu_eager(workload: Workload, config: Config) -> Callable[..., torch.Tensor]:
    """The op as people write it."""
    return lambda x: torch.relu(x).square()


def squared_relu_cpp(workload: Workload, config: Config) -> NativeSource:
    """One build serves every config."""
    threads = int(config["threads"])
    return NativeSource(("squared_relu.cpp",), "squared_relu", lambda outputs, x: (outputs[0], x, threads))
