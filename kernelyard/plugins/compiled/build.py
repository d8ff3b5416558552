"""The builder of the compile backend: torch.compile for one workload, the first call made here.

Every build compiles a function object with a code object of its own. Dynamo counts recompilations by code object and gives up after
8: a matrix of shapes through one function would be half compiled and half eager.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from importlib import metadata
from types import FunctionType
from typing import Any

from kernelyard.errors import BuildFailed
from kernelyard.registry.backend import Executable
from kernelyard.registry.kernel import Kernel
from kernelyard.registry.lazy import load, torch
from kernelyard.registry.machine import installed
from kernelyard.registry.op import Op
from kernelyard.registry.spec import Config, Workload

# CUDA graphs are the caller's: the timing protocol captures every kernel alike, and a decoder captures its whole step.
MODES: Mapping[str, str | None] = {"compile.default": None, "compile.max_autotune": "max-autotune-no-cudagraphs"}
_serial = itertools.count()


class CompileBuilder:
    """Compiles the entry's function for the shapes of one workload."""

    def versions(self) -> Mapping[str, str]:
        """torch brings Inductor; triton generates its GPU code. Read without importing either."""
        return {name: metadata.version(name) for name in ("torch", "triton") if installed(name)}

    def build(self, op: Op, kernel: Kernel, workload: Workload, config: Config) -> Executable:
        """Compile and call once on inputs of the workload, so that no timed call compiles; raises BuildFailed."""
        function = own_code(load(kernel.entry)(workload, config))
        compiled = torch.compile(function, dynamic=False, fullgraph=True, mode=MODES.get(kernel.name))
        generator = torch.Generator(workload.device).manual_seed(0)
        try:
            compiled(*op.inputs(workload, generator))
        except Exception as error:  # Dynamo and Inductor raise what the compilers under them raise
            raise BuildFailed(f"torch.compile failed on {workload.key()}.", log=f"{type(error).__name__}: {error}") from error
        return Executable(compiled)


def own_code(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function with a code object that nothing else shares."""
    assert isinstance(function, FunctionType), f"{function!r} has no code object to copy"
    code = function.__code__.replace(co_name=f"{function.__code__.co_name.lstrip('_')}_{next(_serial)}")
    return FunctionType(code, function.__globals__, code.co_name, function.__defaults__, function.__closure__)


builder = CompileBuilder()
