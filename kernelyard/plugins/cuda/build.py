"""The builder of the cuda backend: a recipe for the GPU that is here, the rest by the native room."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch

from kernelyard.errors import BuildFailed
from kernelyard.plugins.cuda.toolkit import find_nvcc, toolkit_of
from kernelyard.plugins.native.build import Recipe, build_native
from kernelyard.plugins.native.launch import executable
from kernelyard.plugins.native.tools import compiler_version, tvm_ffi_version
from kernelyard.registry.backend import Executable, NativeSource
from kernelyard.registry.kernel import Kernel
from kernelyard.registry.lazy import load
from kernelyard.registry.machine import identity
from kernelyard.registry.op import Op
from kernelyard.registry.spec import Config, Workload


class CudaBuilder:
    """Compiles a `NativeSource` with nvcc and calls it; a call takes torch's current stream by itself."""

    def versions(self) -> Mapping[str, str]:
        """nvcc generates the code, tvm_ffi calls it."""
        return {"nvcc": compiler_version((str(_nvcc()),)), "tvm_ffi": tvm_ffi_version(), "torch": torch.__version__}

    def build(self, op: Op, kernel: Kernel, workload: Workload, config: Config) -> Executable:
        """Built once for a source, its defines, the toolkit and the GPU's architecture; raises BuildFailed."""
        source: NativeSource = load(kernel.entry)(workload, config)
        module = build_native(source, kernel.folder, kernel.name, recipe(architecture(identity("cuda").capability)))
        return executable(op, workload, source, module)


def recipe(arch: str) -> Recipe:
    """How to compile for one architecture as tvm_ffi writes it, '9.0a'; needs a toolkit but no GPU."""
    nvcc = _nvcc()
    home = toolkit_of(nvcc)
    libraries = [folder for folder in (home / "lib64", home / "lib") if folder.is_dir()]
    return Recipe(
        cuda_flags=("-O3", "-lineinfo"),
        link_flags=tuple(f"{flag}{folder}" for folder in libraries for flag in ("-L", "-Wl,-rpath,")),
        depends={"nvcc": compiler_version((str(nvcc),))},
        environment={"CUDA_HOME": str(home), "TVM_FFI_CUDA_ARCH_LIST": arch},
        cuda=True,
    )


def architecture(capability: str) -> str:
    """'9.0a' for 'sm_90', the target with all of Hopper's own instructions; '8.0' for 'sm_80'."""
    digits = capability.removeprefix("sm_")
    arch = f"{digits[:-1]}.{digits[-1]}"
    return f"{arch}a" if int(digits[:-1]) >= 9 else arch


def _nvcc() -> Path:
    search = find_nvcc()
    if search.nvcc is None:
        raise BuildFailed(f"{search.reason()}.")
    return search.nvcc


builder = CudaBuilder()
