"""The cpp backend's builder: C++ through tvm_ffi, one library for each source, flags and CPU."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from kernelyard.errors import BuildFailed
from kernelyard.plugins.cpp.toolchain import recipe
from kernelyard.plugins.native.build import build_native
from kernelyard.plugins.native.launch import executable
from kernelyard.plugins.native.tools import compiler_version, cxx, tvm_ffi_version
from kernelyard.registry.backend import Executable, NativeSource
from kernelyard.registry.kernel import Kernel
from kernelyard.registry.lazy import load
from kernelyard.registry.op import Op
from kernelyard.registry.spec import Config, Workload


class CppBuilder:
    """Builds what a kernel's entry returns, a `NativeSource`."""

    def versions(self) -> Mapping[str, str]:
        """The compiler's and tvm_ffi's; neither is started or imported for it once the compiler is known."""
        return {"c++": compiler_version(cxx()), "tvm_ffi": tvm_ffi_version()}

    def build(self, op: Op, kernel: Kernel, workload: Workload, config: Config) -> Executable:
        """Compile, or find what was compiled before, and bind; raises BuildFailed with the compiler's words."""
        source = load(kernel.entry)(workload, config)
        if not isinstance(source, NativeSource):
            raise BuildFailed(f"{kernel.entry} returned {type(source).__name__}.", do="Return a kernelyard.registry.backend.NativeSource.")
        module = build_native(source, kernel.folder, f"cpp.{Path(source.files[0]).stem}", recipe())  # a gradient may share its op's library
        return executable(op, workload, source, module)


builder = CppBuilder()
