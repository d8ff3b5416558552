"""The builder of the gluon backend: compiled for the current GPU and launched as the Triton plugin launches."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from importlib import metadata
from typing import Any

import torch

from kernelyard.errors import BuildFailed
from kernelyard.registry.backend import Executable, TritonLaunch, writing
from kernelyard.registry.kernel import Kernel
from kernelyard.registry.lazy import load
from kernelyard.registry.op import Op
from kernelyard.registry.spec import Config, Workload


class GluonBuilder:
    """Builds a `TritonLaunch` of a Gluon function."""

    def versions(self) -> Mapping[str, str]:
        """Triton generates the code; torch allocates and names the stream."""
        return {"triton": metadata.version("triton"), "torch": torch.__version__}

    def build(self, op: Op, kernel: Kernel, workload: Workload, config: Config) -> Executable:
        """Compile and load; raises BuildFailed with the compiler's words."""
        from kernelyard.plugins.gluon_ws.compile import compiled
        from kernelyard.plugins.triton_jit.direct import through_cpp

        launch: TritonLaunch = load(kernel.entry)(workload, config)
        if not launch.all():
            return writing(op, _nothing)
        handle = compiled(op, launch, workload)
        try:
            handle.run  # noqa: B018  # loads the code, and so raises where it needs more than the GPU has
        except Exception as error:  # Triton's OutOfResources, or what the driver said
            raise BuildFailed(f"{launch.function.__name__} can't be loaded.", log=f"{type(error).__name__}: {error}") from error
        resources = {
            "registers": int(handle.n_regs), "spills": int(handle.n_spills), "shared_bytes": int(handle.metadata.shared),
            "programs": math.prod(launch.grid), "warps": int(handle.metadata.num_warps),
        }  # fmt: skip
        anyhow = through_handle(launch, handle)
        direct = through_cpp(launch, handle, anyhow)
        return direct.executable(op, workload, resources) if direct else writing(op, anyhow, resources)

    def compile_for(self, op: Op, kernel: Kernel, workload: Workload, config: Config, target: str) -> Mapping[str, int]:
        """Registers and local bytes a thread, shared bytes; compiled without a GPU."""
        from kernelyard.plugins.gluon_ws.compile import usage

        return usage(op, load(kernel.entry)(workload, config), workload, int(target.removeprefix("sm_")))


def through_handle(launch: TritonLaunch, handle: Any) -> Callable[..., None]:
    """A call by Triton's own launcher, which takes constants in their places and encodes descriptors from its own kind of them."""
    from kernelyard.plugins.gluon_ws.compile import as_gluon
    from kernelyard.plugins.triton_jit.compile import by_name
    from kernelyard.plugins.triton_jit.landing import landed

    run = handle[launch.grid]
    anyhow = landed(launch.arguments, lambda values: run(*map(as_gluon, by_name(launch, values).values())))

    def into(outputs: tuple[torch.Tensor, ...], *args: Any) -> None:
        with torch.cuda.device(outputs[0].device):
            anyhow(outputs, *args)

    return into


def _nothing(outputs: tuple[torch.Tensor, ...], *args: Any) -> None:
    """A launch of no programs."""


builder = GluonBuilder()
