"""The builder of the torch backend: an entry's function is the kernel, nothing to compile."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import metadata

from kernelyard.registry.backend import Executable
from kernelyard.registry.kernel import Kernel
from kernelyard.registry.lazy import load
from kernelyard.registry.op import Op
from kernelyard.registry.spec import Config, Workload


class TorchBuilder:
    """Hands out the function that the entry chose for the workload."""

    def versions(self) -> Mapping[str, str]:
        """A stored choice depends on torch alone; read without importing it."""
        return {"torch": metadata.version("torch")}

    def build(self, op: Op, kernel: Kernel, workload: Workload, config: Config) -> Executable:
        """The entry's function, called as it is."""
        return Executable(load(kernel.entry)(workload, config))


builder = TorchBuilder()
