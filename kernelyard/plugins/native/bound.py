"""Calls of native functions made from C++: see `bound.cpp`. What a function is handed is found out once, by stand-ins for the arguments.

A kernel's `arguments(outputs, *args)` may be any Python. Called once with stand-ins that can be handed on but not computed with, one that
only puts tensors, numbers and constants in order shows that order, which C++ then follows. Any other keeps its call through Python.

rmsnorm of one row of 4096 bfloat16 on a slow core of a virtual machine: 4.4 us by Python and tvm_ffi's own call with the result
allocated and 2.4 into a given tensor; from here 2.4 and 1.4.
"""

from __future__ import annotations

import functools
import importlib.util
import sys
import sysconfig
from collections.abc import Callable
from enum import IntEnum
from importlib.machinery import ExtensionFileLoader
from pathlib import Path
from typing import Any, NoReturn

import torch

from kernelyard.errors import BuildFailed
from kernelyard.plugins.native.build import Recipe, artefact
from kernelyard.plugins.native.tools import compiler_version, cxx
from kernelyard.registry.backend import Executable, NativeSource
from kernelyard.registry.op import Op
from kernelyard.registry.spec import TensorSpec, Workload

SOURCE = NativeSource(("bound.cpp",), "bind", lambda outputs, *args: args)
MOST = 31
"""Arguments of an op, and of a function."""

Entry = tuple[int, Any]

try:  # how code of torch.compile allocates: without torch's dispatcher, at half of what torch.empty_like costs
    from torch._C._dynamo import guards as _torch_guards
except ImportError:  # no promise of torch
    _torch_guards = None  # type: ignore[assignment]


class Takes(IntEnum):
    """What an argument of the op has to be, as `bound.cpp` counts them."""

    TENSOR, NOTHING, NUMBER, FIXED = range(4)


class From(IntEnum):
    """Where something that is handed over comes from."""

    OUTPUT, ARGUMENT, CONSTANT = range(3)


def bound(
    op: Op, workload: Workload, function: Any, arguments: Callable[..., tuple[Any, ...]], slow: Executable, *, answers: bool = False
) -> Executable:
    """`slow` with its calls made from C++, where that can be; else `slow` itself.

    function    a tvm_ffi function; with `answers` it returns whether it did the work, and where not, `slow` does it
    arguments   (outputs, *args) -> what the function is handed, in its order
    """
    module, torchs = _extension(), getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
    items = order(op, workload, arguments) if module and type(torchs).__name__ == "PyCapsule" else None
    if items is None or max(len(items), len(op.arguments)) > MOST:
        return slow
    strided = getattr(_torch_guards, f"_empty_strided_{workload.device}", None)
    objects = (
        function, torchs, op.empty, strided, torch._C._len_torch_dispatch_stack, torch.Tensor, torch.nn.Parameter, slow.call, slow.into,
    )
    alike = likes(op, workload) if strided else ()
    call, into = module.bind(function.__chandle__(), answers, takes(op, workload), items, alike, op.returns, objects)
    return Executable(call, into, slow.resources)


class _StandIn:
    """Can be handed on and told from None, nothing else."""

    def _refused(self, *args: Any) -> NoReturn:
        raise TypeError("its value is not known before a call")

    __bool__ = __eq__ = __len__ = __iter__ = __getattr__ = __index__ = __getitem__ = _refused
    __hash__ = object.__hash__


class _Number(_StandIn):
    """A float to be; float() of it can be handed on too, and what is computed from that is not the same object."""

    def __init__(self) -> None:
        object.__setattr__(self, "_float", float("nan"))

    def __float__(self) -> float:
        return object.__getattribute__(self, "_float")  # type: ignore[no-any-return]


def order(op: Op, workload: Workload, arguments: Callable[..., tuple[Any, ...]]) -> tuple[Entry, ...] | None:
    """What a function is handed: outputs and arguments by their places, and constants. None where arguments are computed with."""
    outputs, given = tuple(_StandIn() for _ in range(op.returns)), _given(op, workload, lambda name: _StandIn(), _Number)
    try:
        handed = arguments(outputs, *given)
    except Exception:  # whatever an author's code does with a thing that it takes for a tensor
        return None
    places: dict[int, Entry] = {id(one): (From.OUTPUT, i) for i, one in enumerate(outputs)}
    for i, one in enumerate(given):
        if isinstance(one, _StandIn):
            places[id(one)] = (From.ARGUMENT, i)
        if isinstance(one, _Number):
            places[id(float(one))] = (From.ARGUMENT, i)
    items = [places.get(id(one)) or _constant(one) for one in handed]
    return None if None in items else tuple(item for item in items if item is not None)


def _constant(value: Any) -> Entry | None:
    plain = value is None or type(value) in (bool, int) or (type(value) is float and value == value)
    return (From.CONSTANT, value) if plain and not (type(value) is int and value.bit_length() > 63) else None


def takes(op: Op, workload: Workload) -> tuple[Entry, ...]:
    """What each argument has to be for the call to be the one that was bound."""
    known = dict(workload.statics)
    return tuple(
        (Takes.TENSOR if workload.has(a.name) else Takes.NOTHING, None) if a.tensor
        else (Takes.FIXED, known[a.name]) if a.name in known
        else (Takes.NUMBER, None)
        for a in op.arguments
    )  # fmt: skip


def _given(op: Op, workload: Workload, tensor: Callable[[str], Any], number: Callable[[], Any]) -> tuple[Any, ...]:
    """Arguments of such a call, its tensors and numbers by these."""
    kinds = zip(op.arguments, takes(op, workload), strict=True)
    return tuple(
        tensor(a.name) if kind == Takes.TENSOR else number() if kind == Takes.NUMBER else value for a, (kind, value) in kinds
    )  # fmt: skip


def likes(op: Op, workload: Workload) -> tuple[tuple[int, torch.dtype], ...]:
    """For each output the place of an argument of its shape and dtype, and that; empty where one has none, and the contract's function
    allocates."""
    given = _given(op, workload, lambda name: _meta(workload[name]), lambda: 1.0)
    tensors = [(i, value) for i, value in enumerate(given) if isinstance(value, torch.Tensor)]
    places = []
    for output in op.empty(*given):
        same = (i for i, tensor in tensors if tensor.shape == output.shape and tensor.dtype == output.dtype)
        places.append((next(same, -1) if output.is_contiguous() else -1, output.dtype))
    return () if any(place < 0 for place, _ in places) else tuple(places)


def _meta(spec: TensorSpec) -> torch.Tensor:
    return torch.empty_strided(spec.shape, spec.strides, dtype=getattr(torch, spec.dtype), device="meta")


@functools.lru_cache(maxsize=1)
def _extension() -> Any:
    """The loaded C++; None where it can't be built: calls then go through Python, at a few microseconds more."""
    try:
        path = artefact(SOURCE, Path(__file__).parent, "native.bound", recipe())
        loader = ExtensionFileLoader("bound", str(path))
        module = importlib.util.module_from_spec(importlib.util.spec_from_loader("bound", loader))  # type: ignore[arg-type]
        loader.exec_module(module)
        return module
    except (BuildFailed, ImportError):
        return None


def recipe() -> Recipe:
    """C++17 with Python's own headers, where there are such."""
    flags = ("-std=c++17", "-fPIC", "-O2", f"-I{sysconfig.get_path('include')}")
    return Recipe(cxx_flags=flags, depends={"c++": compiler_version(cxx()), "python": f"{sys.version} {sysconfig.get_config_var('SOABI')}"})
