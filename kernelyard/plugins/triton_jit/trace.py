"""Every memory access of a launch, seen through Triton's interpreter by a `recorder`.

Tensors lie `APART` bytes from each other, so that an address a little outside of one is in no other. A lane outside its tensor
is told and not executed, near or far: the interpreter would follow any address, and end the process.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch
from torch import Tensor
from triton.runtime.interpreter import interpreter_builder

from kernelyard.errors import BuildFailed
from kernelyard.plugins.triton_jit.build import as_triton
from kernelyard.plugins.triton_jit.recorder import Recorder, recorded
from kernelyard.registry.backend import Descriptor, TritonLaunch
from kernelyard.registry.op import Op
from kernelyard.registry.tracing import Region, Role, See, Trace

APART = 1 << 16
ALIGNED = 256
"""As a GPU's allocator aligns: sectors counted from a tensor's start are then those of a GPU."""


def prepare(op: Op, launch: TritonLaunch, args: tuple[Any, ...]) -> Trace:
    """The launch, and those that follow it, with tensors apart from each other, ready to run."""
    inputs = tuple(_apart(value) if isinstance(value, Tensor) else value for value in args)
    outputs = tuple(_apart(output) for output in op.empty(*inputs))
    own = tuple(_apart(torch.zeros(spec.shape, dtype=getattr(torch, spec.dtype))) for spec in launch.scratch)
    launches = launch.all() or (launch,)
    values = [one.arguments((*outputs, *own), *inputs) for one in launches]
    named = [pair for one, given in zip(launches, values, strict=True) for pair in _named(one, given)]
    regions = _regions(op, inputs, outputs, named)

    def run(see: See) -> None:
        with np.errstate(all="ignore"), warnings.catch_warnings(), recorded(Recorder(regions, [v for _, v in named], see)) as recorder:
            warnings.filterwarnings("ignore", "All-NaN slice", RuntimeWarning)
            for recorder.launch, (one, given) in enumerate(zip(launches, values, strict=True)):
                _interpret(one, given)

    first, later = launches[0], tuple(one.num_warps for one in launches[1:])
    file = first.function.fn.__code__.co_filename
    return Trace(first.function.__name__, file, first.grid, first.num_warps, regions, run, later)


def _named(launch: TritonLaunch, values: tuple[Any, ...]) -> list[tuple[str, Tensor]]:
    free = tuple(name for name in launch.function.arg_names if name not in launch.constants)
    tensors = [value.tensor if isinstance(value, Descriptor) else value for value in values]
    return [(_plain(name), tensor) for name, tensor in zip(free, tensors, strict=True) if isinstance(tensor, Tensor)]


def _interpret(launch: TritonLaunch, values: tuple[Any, ...]) -> None:
    try:
        launch.function[launch.grid](*map(as_triton, values), **launch.constants)
    except Exception as error:  # Triton's InterpreterError, or what the kernel's code raised
        where = f"program {interpreter_builder.grid_idx}"
        log = f"{type(error).__name__}: {error}"
        raise BuildFailed(f"Triton's interpreter stopped in {where} of {launch.function.__name__}.", log=log) from error


def _apart(tensor: Tensor) -> Tensor:
    """A copy with the same strides and misalignment in memory of its own, nothing within `APART` bytes of it."""
    size, span = tensor.element_size(), _span(tensor)
    room = torch.zeros(span * size + 2 * APART + 2 * ALIGNED, dtype=torch.uint8)
    start = APART + (-(room.data_ptr() + APART)) % ALIGNED + tensor.data_ptr() % 16
    flat = room[start : start + span * size].view(tensor.dtype)
    flat.copy_(tensor.as_strided((span,), (1,), tensor.storage_offset()))
    return flat.as_strided(tensor.shape, tensor.stride(), flat.storage_offset())


def _span(tensor: Tensor) -> int:
    return 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True)) if tensor.numel() else 0


def _plain(parameter: str) -> str:
    """`x_ptr` points to x."""
    return parameter.removesuffix("_ptr")


def _regions(op: Op, inputs: tuple[Any, ...], outputs: tuple[Tensor, ...], named: list[tuple[str, Tensor]]) -> tuple[Region, ...]:
    """The op's tensors by the schema's names, outputs and the kernel's own tensors by the names of its parameters."""
    found = [_region(a.name, "input", v) for a, v in zip(op.arguments, inputs, strict=True) if isinstance(v, Tensor)]
    for number, output in enumerate(outputs):
        parameter = next((name for name, value in named if value.data_ptr() == output.data_ptr()), f"output {number}")
        found.append(_region(parameter, "output", output))
    for name, value in named:
        if not any(r.address <= value.data_ptr() < r.address + max(r.nbytes, 1) for r in found):
            same = sum(r.name == name or r.name.startswith(f"{name} ") for r in found)  # of two copies each has its `to`
            found.append(_region(f"{name} {same + 1}" if same else name, "workspace", value))
    return tuple(found)


def _region(name: str, role: Role, tensor: Tensor) -> Region:
    size = tensor.element_size()
    return Region(name, role, tensor.data_ptr(), _span(tensor) * size, size, tuple(tensor.shape), tuple(tensor.stride()))
