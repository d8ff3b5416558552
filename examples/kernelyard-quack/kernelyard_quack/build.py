"""The builder of the quack backend. Importing it imports torch, but not yet quack."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import metadata

import torch

from kernelyard.registry.backend import Executable, aligned, writing
from kernelyard.registry.kernel import Kernel
from kernelyard.registry.lazy import load
from kernelyard.registry.op import Op
from kernelyard.registry.spec import Config, Workload

Into = Callable[..., None]


class QuackBuilder:
    """An entry returns a function (outputs, *args) that writes into the outputs."""

    def versions(self) -> Mapping[str, str]:
        """The CuTe DSL compiles what quack wrote, torch allocates and sums."""
        return {name: metadata.version(name) for name in ("quack-kernels", "nvidia-cutlass-dsl", "torch")}

    def build(self, op: Op, kernel: Kernel, workload: Workload, config: Config) -> Executable:
        """Compiled by a first call with inputs of the op's own: what the DSL refuses is then a failed build and no failed call.

        quack refuses results that do not start at a multiple of 16 bytes.
        """
        built = writing(op, aligned(load(kernel.entry)(workload, config)))
        built.call(*op.inputs(workload, torch.Generator(workload.device)))
        return built


builder = QuackBuilder()
