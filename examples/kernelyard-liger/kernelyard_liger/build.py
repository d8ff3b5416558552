"""The builder of the liger backend. Importing it imports torch, but not yet Liger."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import metadata

import torch

from kernelyard.registry.backend import Executable
from kernelyard.registry.kernel import Kernel
from kernelyard.registry.lazy import load
from kernelyard.registry.op import Op
from kernelyard.registry.spec import Config, Workload


class LigerBuilder:
    """An entry returns a function of the op's arguments that allocates what it returns, as Liger's own do."""

    def versions(self) -> Mapping[str, str]:
        """Triton compiles what Liger wrote, torch allocates and sums."""
        return {name: metadata.version(name) for name in ("liger-kernel", "triton", "torch")}

    def build(self, op: Op, kernel: Kernel, workload: Workload, config: Config) -> Executable:
        """Compiled by a first call with inputs of the op's own: what Triton refuses is then a failed build and no failed call."""
        call = load(kernel.entry)(workload, config)
        call(*op.inputs(workload, torch.Generator(workload.device)))
        return Executable(call)


builder = LigerBuilder()
