"""The builder of the triton backend: interpreted on a CPU; on a GPU compiled and called from C++ (see `direct`) or by its handle."""

from __future__ import annotations

import math
import os
import sys
import warnings
from collections.abc import Callable, Mapping
from importlib import metadata
from typing import Any

import torch

from kernelyard.errors import BuildFailed
from kernelyard.plugins.triton_jit.counters import prepare as prepare_counters
from kernelyard.plugins.triton_jit.counters import with_counters
from kernelyard.plugins.triton_jit.direct import Direct, through_cpp
from kernelyard.plugins.triton_jit.landing import landed
from kernelyard.registry.backend import Descriptor, Executable, TritonLaunch, writing
from kernelyard.registry.kernel import Kernel
from kernelyard.registry.lazy import load
from kernelyard.registry.op import Op
from kernelyard.registry.spec import Config, TensorSpec, Workload
from kernelyard.registry.tracing import Trace

Into = Callable[..., None]


class TritonBuilder:
    """Builds a `TritonLaunch`. Imports Triton only in `build`, so that a check can still choose the interpreter."""

    def versions(self) -> Mapping[str, str]:
        """Triton generates the code; torch allocates and names the stream."""
        return {"triton": metadata.version("triton"), "torch": torch.__version__}

    def build(self, op: Op, kernel: Kernel, workload: Workload, config: Config) -> Executable:
        """Compile and load; raises BuildFailed with the compiler's words."""
        interpreted = workload.device == "cpu"
        choose_mode(interpret=interpreted)
        first: TritonLaunch = load(kernel.entry)(workload, config)
        launches = first.all()
        if interpreted:
            return writing(op, with_scratch(first, _quietly(_in_order([through_launcher(one, {}) for one in launches]))))
        if first.counters:
            prepare_counters()
        built = [_compiled(op, first, one, workload) for one in launches]
        resources = {name: max(one[name] for _, one in built) for name in built[0][1]} if built else {}
        if len(built) == 1 and not first.scratch and isinstance(only := built[0][0], Direct):
            return only.executable(op, workload, resources)
        intos = [way.into if isinstance(way, Direct) else way for way, _ in built]
        return writing(op, with_scratch(first, _in_order(intos)), resources)

    def trace(self, op: Op, kernel: Kernel, workload: Workload, config: Config, args: tuple[Any, ...]) -> Trace:
        """Every memory access through Triton's interpreter, on any machine; see `trace`."""
        choose_mode(interpret=True)
        from kernelyard.plugins.triton_jit.trace import prepare

        return prepare(op, load(kernel.entry)(workload, config), args)

    def compile_for(self, op: Op, kernel: Kernel, workload: Workload, config: Config, target: str) -> Mapping[str, int]:
        """Registers, local and shared bytes and the widest accesses, compiled without a GPU; see `offline`."""
        choose_mode(interpret=False)
        from triton.backends.compiler import GPUTarget

        from kernelyard.plugins.triton_jit.offline import compile_only

        told = compile_only(op, kernel, workload, config, GPUTarget("cuda", int(target.removeprefix("sm_")), 32))
        names = ("registers", "local_bytes", "shared_bytes", "load_bytes", "store_bytes")
        return {name: getattr(told, name) for name in names}


def choose_mode(*, interpret: bool) -> None:
    """Have Triton interpret or compile in this process; it decides when a function is declared, its own library's at import.

    Raises BuildFailed where Triton was already imported the other way.
    """
    if interpret and "triton" not in sys.modules:
        os.environ["TRITON_INTERPRET"] = "1"
    import triton
    import triton.language as tl

    compiles = isinstance(tl.sum, triton.JITFunction)
    if interpret and (compiles or not triton.knobs.runtime.interpret):
        asked = "this process has imported Triton to compile, so it can't interpret."
        raise BuildFailed(asked, do="Use a process of its own with TRITON_INTERPRET=1, as `kernelyard check` does.")
    if interpret:
        from kernelyard.plugins.triton_jit.interpreter import correct

        correct()
    elif not compiles:
        raise BuildFailed("this process has imported Triton to interpret, so it can't compile.", do="Unset TRITON_INTERPRET.")


def through_launcher(launch: TritonLaunch, options: Mapping[str, Any]) -> Into:
    """A call by Triton's own launcher: whatever the arguments, and the only way into the interpreter."""
    function, grid, constants = launch.function, launch.grid, launch.constants

    def go(values: tuple[Any, ...]) -> None:
        function[grid](*map(as_triton, values), **constants, **options)

    return landed(launch.arguments, go)


def as_triton(value: Any) -> Any:
    """Triton's own descriptor for one of ours; anything else as it is."""
    if not isinstance(value, Descriptor):
        return value
    from triton.tools.tensor_descriptor import TensorDescriptor

    return TensorDescriptor(value.tensor, list(value.shape), list(value.strides), list(value.block))


def _in_order(launches: list[Into]) -> Into:
    """One launch after the other; none, one and two without a loop."""
    if not launches:
        return _nothing
    if len(launches) == 1:
        return launches[0]

    def into(outputs: tuple[torch.Tensor, ...], *args: Any) -> None:
        for launch in launches:
            launch(outputs, *args)

    return into


def with_scratch(first: TritonLaunch, launches: Into) -> Into:
    """Workspaces, and behind them the counters where the first launch has some."""
    return with_workspace(first.workspace, with_counters(first.counters, launches) if first.counters else launches)


def with_workspace(specs: tuple[TensorSpec, ...], launches: Into) -> Into:
    """Tensors for the launches' own use behind the outputs, new at each call.

    torch's allocator knows the stream, or the graph that is being captured. One allocation costs 2 us on the host; a tensor kept
    from call to call would be shared by two streams.
    """
    if not specs:
        return launches
    shapes = [(spec.shape, getattr(torch, spec.dtype)) for spec in specs]

    def into(outputs: tuple[torch.Tensor, ...], *args: Any) -> None:
        device = outputs[0].device
        own = tuple(torch.empty(shape, dtype=dtype, device=device) for shape, dtype in shapes)
        launches((*outputs, *own), *args)

    return into


def _quietly(into: Into) -> Into:
    """The interpreter computes in numpy, which warns of every inf and NaN that the contract defines."""
    import numpy as np

    def quiet(outputs: tuple[torch.Tensor, ...], *args: Any) -> None:
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "All-NaN slice", RuntimeWarning)
            into(outputs, *args)

    return quiet


def _compiled(op: Op, first: TritonLaunch, launch: TritonLaunch, workload: Workload) -> tuple[Direct | Into, Mapping[str, int]]:
    from kernelyard.plugins.triton_jit.compile import compiled, options
    from kernelyard.plugins.triton_jit.handle import known, through_handle

    handle = compiled(op, launch, workload, workspace=first.scratch)
    try:
        handle.run  # noqa: B018  # loads the code, and so raises where it needs more than the GPU has
    except Exception as error:  # Triton's OutOfResources, or what the driver said
        raise BuildFailed(f"{launch.function.__name__} can't be loaded.", log=f"{type(error).__name__}: {error}") from error
    resources = {
        "registers": int(handle.n_regs), "spills": int(handle.n_spills), "shared_bytes": int(handle.metadata.shared),
        "programs": math.prod(launch.grid), "warps": int(handle.metadata.num_warps),
    }  # fmt: skip
    anyhow = _on_its_device(through_launcher(launch, options(launch)))
    direct = through_cpp(launch, handle, anyhow)
    return direct or (through_handle(launch, handle, anyhow) if known(launch, handle) else anyhow), resources


def _on_its_device(into: Into) -> Into:
    def guarded(outputs: tuple[torch.Tensor, ...], *args: Any) -> None:
        with torch.cuda.device(outputs[0].device):
            into(outputs, *args)

    return guarded


def _nothing(outputs: tuple[torch.Tensor, ...], *args: Any) -> None:
    """A launch of no programs."""


builder = TritonBuilder()
