"""A call of compiled Triton code by the driver's own launch function, with nothing in between.

Host cost of a call (H200, Triton 3.6): 16.9 us through `kernel[grid](...)`, which binds, specialises and looks up at every call what a
workload has fixed once and for all; 6.5 through `CompiledKernel.run`, which still looks for scratch memory and hooks, and asks
the driver about every pointer. Here addresses are given as numbers, which it takes as they are.
torch.cuda.current_stream() alone costs 7.9 us, the raw stream 0.17.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import metadata
from typing import Any

import torch

from kernelyard.registry.backend import TritonLaunch

Into = Callable[..., None]
VERSIONS = ((3, 6), (3, 9))
"""First and last version whose launch function was read."""


def known(launch: TritonLaunch, handle: Any) -> bool:
    """Whether this Triton takes arguments as they are given here: no descriptors, constants after all others."""
    if any(str(kind).startswith("tensordesc") for kind in handle.src.signature.values()):
        return False
    names = launch.function.arg_names
    return VERSIONS[0] <= _version() <= VERSIONS[1] and set(names[len(names) - len(launch.constants) :]) == set(launch.constants)


def through_handle(launch: TritonLaunch, handle: Any, anyhow: Into) -> Into:
    """A call of the compiled code, bound to the current GPU. Outputs that are misaligned or elsewhere go `anyhow`."""
    go, arguments, addresses = _launcher(launch, handle), launch.arguments, _addresses()
    index = torch.cuda.current_device()
    current_device, raw_stream = torch._C._cuda_getDevice, torch._C._cuda_getCurrentRawStream

    def into(outputs: tuple[torch.Tensor, ...], *args: Any) -> None:
        for output in outputs:
            if output.data_ptr() & 15 or output.get_device() != index:
                return anyhow(outputs, *args)
        if current_device() != index:
            return anyhow(outputs, *args)
        go(raw_stream(index), addresses(arguments(outputs, *args)))
        return None

    return into


def _launcher(launch: TritonLaunch, handle: Any) -> Callable[[int, tuple[Any, ...]], None]:
    """(stream, run-time arguments) -> None. Hooks and scratch memory are left out: our kernels have none."""
    run, function, packed = handle.run, handle.function, handle.packed_metadata
    constants = tuple(launch.constants[name] for name in launch.function.arg_names if name in launch.constants)
    (x, y, z), direct = launch.grid, getattr(run, "launch", None)
    if direct is None or run.global_scratch_size or run.profile_scratch_size:
        return lambda stream, values: run(x, y, z, stream, function, packed, None, None, None, *values, *constants)
    cooperative, pdl = run.launch_cooperative_grid, run.launch_pdl
    if _version() < (3, 7):
        return lambda stream, values: direct(
            x, y, z, stream, function, cooperative, pdl, None, None, packed, None, None, None, *values, *constants
        )
    if not hasattr(run, "arg_annotations"):
        return lambda stream, values: run(x, y, z, stream, function, packed, None, None, None, *values, *constants)
    kinds, signature = run.arg_annotations, run.kernel_signature
    return lambda stream, values: direct(
        x, y, z, stream, function, cooperative, pdl, packed, None, None, None, None, None, kinds, signature, (*values, *constants)
    )


def _addresses() -> Callable[[tuple[Any, ...]], tuple[Any, ...]]:
    """Arguments with tensors as addresses. Which of them are tensors is the same at every call, so it is looked at once."""
    found: list[Callable[[tuple[Any, ...]], tuple[Any, ...]]] = []

    def addresses(values: tuple[Any, ...]) -> tuple[Any, ...]:
        if not found:
            words = [f"v[{i}]{'.data_ptr()' if isinstance(value, torch.Tensor) else ''}" for i, value in enumerate(values)]
            found.append(eval(f"lambda v: ({', '.join(words)},)"))
        return found[0](values)

    return addresses


def _version() -> tuple[int, int]:
    major, minor = metadata.version("triton").split(".")[:2]
    return int(major), int(minor)
