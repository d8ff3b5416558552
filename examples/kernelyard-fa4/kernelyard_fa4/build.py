"""The builder of the fa4 backend. Importing it imports torch, but not yet FA4."""

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


class FA4Builder:
    """An entry returns a function (outputs, *args) that writes into the outputs."""

    def versions(self) -> Mapping[str, str]:
        """The CuTe DSL compiles what FA4 wrote, with parts of quack; torch allocates."""
        return {name: metadata.version(name) for name in ("flash-attn-4", "quack-kernels", "nvidia-cutlass-dsl", "torch")}

    def build(self, op: Op, kernel: Kernel, workload: Workload, config: Config) -> Executable:
        """Compiled by a first call with inputs of the op's own: what the DSL refuses is then a failed build and no failed call.

        FA4 refuses results that do not start at a multiple of 16 bytes.
        """
        built = writing(op, aligned(load(kernel.entry)(workload, config)))
        built.call(*op.inputs(workload, torch.Generator(workload.device)))
        return built


builder = FA4Builder()
