"""A call of compiled Triton code from C++: see `launcher.cpp`, which is built once a machine and Triton.

Host cost of a call on an H200 by Triton's own C launcher (see `handle`): 6.0 to 8.9 us with given outputs, 5.5 of them the launcher.
A kernel in CUDA C++ that tvm_ffi calls costs 4.3; this is the same call with Triton's code behind it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from kernelyard.errors import BuildFailed
from kernelyard.plugins.native.bound import bound
from kernelyard.plugins.native.build import Recipe, build_native
from kernelyard.plugins.native.tools import compiler_version, cxx
from kernelyard.registry.backend import Descriptor, Executable, NativeSource, TritonLaunch, writing
from kernelyard.registry.op import Op
from kernelyard.registry.spec import Workload

Into = Callable[..., None]
SOURCE = NativeSource(("launcher.cpp",), "bound", lambda outputs, *args: args)
LETTERS = {"i1": "b", "i32": "i", "i64": "l", "fp32": "f"}
CUDA = 2
"""DLPack's number of the device type."""


@dataclass(frozen=True)
class Direct:
    """A launch from C++: `into(outputs, *args)` is `go(*arguments(outputs, *args))`, or whatever serves where `go` returns False."""

    go: Any
    arguments: Callable[..., tuple[Any, ...]]
    into: Into

    def executable(self, op: Op, workload: Workload, resources: Mapping[str, int]) -> Executable:
        """A kernel that is this one launch."""
        return bound(op, workload, self.go, self.arguments, writing(op, self.into, resources), answers=True)


def through_cpp(launch: TritonLaunch, handle: Any, anyhow: Into) -> Direct | None:
    """A call bound to the current GPU; None where it can't be made. Tensors that are misaligned or elsewhere go `anyhow`."""
    run, kinds = handle.run, letters(launch, handle.src)
    if kinds is None or run.global_scratch_size or run.profile_scratch_size or run.launch_cooperative_grid:
        return None
    try:
        make = build_native(SOURCE, Path(__file__).parent, "triton.launcher", recipe())["bound"]
    except BuildFailed:  # no C++ compiler for C++17, no ninja: Triton's own launcher serves, 2 us slower
        return None
    threads, shared = 32 * int(handle.metadata.num_warps), int(handle.metadata.shared)
    hidden = hidden_parameters(str(handle.asm["ptx"]), kinds)
    maps = tensor_maps(handle)
    go = make(handle.function, list(launch.grid), threads, shared, launch.pdl, kinds, hidden, maps, CUDA, torch.cuda.current_device())
    arguments = flattened(launch.arguments) if maps else launch.arguments

    def into(outputs: tuple[torch.Tensor, ...], *args: Any) -> None:
        if not go(*arguments(outputs, *args)):
            anyhow(outputs, *args)

    return Direct(go, arguments, into)


def tensor_maps(handle: Any) -> list[list[int]]:
    """For each descriptor among the arguments what the compiler decided of it: swizzle, bytes and type of an element, the block."""
    from triton.backends.nvidia.driver import TMA_DTYPE_DEVICE_TO_HOST as HOST

    found = getattr(handle.metadata, "tensordesc_meta", None) or ()
    return [[one["swizzle"], one["elem_size"], HOST[one["elem_type"]], *one["block_size"]] for one in found]


def flattened(arguments: Callable[..., tuple[Any, ...]]) -> Callable[..., tuple[Any, ...]]:
    """The same arguments with each descriptor as its tensor, shape and strides."""

    def flat(outputs: tuple[torch.Tensor, ...], *args: Any) -> tuple[Any, ...]:
        told: list[Any] = []
        for value in arguments(outputs, *args):
            told += (value.tensor, *value.shape, *value.strides) if isinstance(value, Descriptor) else (value,)
        return tuple(told)

    return flat


def letters(launch: TritonLaunch, source: Any) -> str | None:
    """A letter for each run-time argument, as `launcher.cpp` takes them; None where one is of no kind that it knows.

    `source` is Triton's own record of what was compiled: a type by parameter, and which may be taken for divisible by 16.
    """
    told = ""
    for place, name in enumerate(launch.function.arg_names):
        if name in launch.constants:
            continue
        kind = source.signature[name]
        if kind == "constexpr":  # 1 or None, which the code has inside
            told += "-"
        elif kind.startswith("*"):
            told += "p" if (place,) in source.attrs else "m"
        elif kind.startswith("tensordesc"):
            told += str(kind.partition("]")[0].count(",") + 1)  # how many dimensions; a layout may follow
        elif kind in LETTERS:
            told += LETTERS[kind]
        else:
            return None
    return told


def hidden_parameters(ptx: str, kinds: str) -> int:
    """How many parameters the compiled code has behind those of the function; a descriptor is one, and its shape and strides."""
    own = sum(0 if kind == "-" else 1 + 2 * int(kind) if kind.isdigit() else 1 for kind in kinds)
    entry = re.search(r"\.entry[^(]*\((.*?)\)", ptx, re.DOTALL)
    return (entry[1].count(".param") if entry else 0) - own


def recipe() -> Recipe:
    """Plain C++17 with the driver's declarations that Triton brings."""
    import triton.backends.nvidia

    include = Path(triton.backends.nvidia.__file__).parent / "include"
    flags = ("-std=c++17", "-fPIC", "-O2", f"-I{include}")
    return Recipe(cxx_flags=flags, link_flags=("-ldl",), depends={"c++": compiler_version(cxx()), "triton": metadata.version("triton")})
