"""The interpreter's memory functions, replaced while a trace runs: each access is told before it is executed, or dropped.

The interpreter lowers loads, stores, atomics, block pointers and tensor descriptors to four functions of its one builder. Triton
3.6 to 3.9 differ in the arguments that follow those read here. Pointer arithmetic is replaced too, so that an address knows the
tensor that it was derived from.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import triton
import triton.language as tl
from numpy.typing import NDArray
from torch import Tensor
from triton.runtime.interpreter import TensorHandle, _get_np_dtype, _interpreter, interpreter_builder

from kernelyard.registry.tracing import Access, Kind, Region, See

POINTERS = (
    "create_addptr", "create_splat", "create_broadcast", "create_expand_dims", "create_reshape", "create_trans", "create_bitcast",
)  # fmt: skip
"""What makes a pointer from a pointer."""
ATOMIC_WAYS = ("create_atomic_load", "create_atomic_store", "create_atomic_poll")
"""Atomics that the interpreter lowers to plain loads and stores; absent in 3.6."""
INSIDE_TRITON = str(Path(triton.__file__).parent)


@contextmanager
def recorded(recorder: Recorder) -> Iterator[Recorder]:
    """The recorder in place of the builder's functions; its own again afterwards, whatever happened."""
    functions = recorder.functions() | {name: recorder.derived(name) for name in POINTERS}
    try:
        for name, function in functions.items():
            setattr(recorder.builder, name, function)
        yield recorder
    finally:
        for name in functions:
            recorder.builder.__dict__.pop(name, None)


class Recorder:
    """Stands before the builder's memory functions during one trace: tells each access, and executes what is inside its tensor."""

    def __init__(self, regions: tuple[Region, ...], arguments: list[Tensor], see: See) -> None:
        self.regions, self.see, self.count, self.launch, self.atomic = regions, see, 0, 0, False
        self.starts = {a.data_ptr(): r for a in arguments for r in regions if r.address <= a.data_ptr() < r.address + max(r.nbytes, 1)}
        self.scratch = np.zeros(2, np.int64)  # where an atomic without a mask goes instead of astray
        self.builder = interpreter_builder
        self.plain = {name: getattr(self.builder, name) for name in self.functions() | dict.fromkeys(POINTERS)}

    def functions(self) -> dict[str, Callable[..., Any]]:
        """Replacements by the builder's names."""
        ways = {name: self._atomically(name) for name in ATOMIC_WAYS if hasattr(self.builder, name)}
        memory: dict[str, Callable[..., Any]] = {"create_masked_load": self.load, "create_masked_store": self.store}
        return ways | memory | {"create_atomic_rmw": self.rmw, "create_atomic_cas": self.cas}

    def load(self, pointers: Any, mask: Any, *rest: Any, **named: Any) -> Any:
        """A load of the lanes that are inside; the others give what masked lanes give."""
        inside = self._tell("atomic" if self.atomic else "load", pointers, _mask(mask))
        return self.plain["create_masked_load"](pointers, TensorHandle(inside, tl.int1), *rest, **named)

    def store(self, pointers: Any, value: Any, mask: Any, *rest: Any, **named: Any) -> Any:
        """A store of the lanes that are inside; what it changes is seen by loading before and after."""
        active = _mask(mask)
        region, inside = self._inside(pointers, active)
        kind = np.dtype(f"u{_itemsize(pointers)}")
        before = _interpreter.load(pointers.data, inside, np.zeros(pointers.data.shape, kind), kind)
        self.plain["create_masked_store"](pointers, value, TensorHandle(inside, tl.int1), *rest, **named)
        after = _interpreter.load(pointers.data, inside, np.zeros(pointers.data.shape, kind), kind)
        self._hand_over("atomic" if self.atomic else "store", pointers, active, region, before != after)

    def rmw(self, operation: Any, pointers: Any, value: Any, mask: Any, *rest: Any, **named: Any) -> Any:
        """An atomic of the lanes that are inside."""
        inside = self._tell("atomic", pointers, _mask(mask))
        return self.plain["create_atomic_rmw"](operation, pointers, value, TensorHandle(inside, tl.int1), *rest, **named)

    def cas(self, pointers: Any, *rest: Any, **named: Any) -> Any:
        """A compare-and-swap; it takes no mask, so a lane that is outside swaps a scratch value."""
        inside = self._tell("atomic", pointers, np.ones(pointers.data.shape, np.bool_))
        safe = np.where(inside, pointers.data, np.uint64(self.scratch.ctypes.data))
        return self.plain["create_atomic_cas"](TensorHandle(safe, pointers.dtype), *rest, **named)

    def _atomically(self, name: str) -> Callable[..., Any]:
        def through(*args: Any, **named: Any) -> Any:
            self.atomic = True
            try:
                return self.plain[name](*args, **named)
            finally:
                self.atomic = False

        return through

    def derived(self, name: str) -> Callable[..., Any]:
        """The builder's own function; its result remembers the tensor of the pointer that it was made from."""

        def through(*args: Any, **named: Any) -> Any:
            result = self.plain[name](*args, **named)
            if isinstance(result, TensorHandle) and hasattr(result.dtype, "element_ty"):
                tensors = (self._origin(arg) for arg in args if isinstance(arg, TensorHandle))
                result.attr["tensor"] = next(filter(None, tensors), None)
            return result

        return through

    def _origin(self, handle: Any) -> Region | None:
        """The region that a pointer was derived from: as remembered, or of an argument that starts where it points."""
        if known := handle.attr.get("tensor"):
            return known  # type: ignore[no-any-return]
        return self.starts.get(int(handle.data.flat[0])) if handle.data.size == 1 and hasattr(handle.dtype, "element_ty") else None

    def _inside(self, pointers: Any, active: NDArray[np.bool_]) -> tuple[Region, NDArray[np.bool_]]:
        """The tensor meant, and the active lanes in it. Where a pointer's origin was lost: the tensor that holds most, or the nearest."""
        addresses, size = pointers.data.astype(np.int64), _itemsize(pointers)
        region = self._origin(pointers)
        if region is None:
            meant = addresses[active] if active.any() else addresses.ravel()
            region = max(self.regions, key=lambda r: (int(r.holds(meant, size).sum()), -int(np.abs(meant - r.address).min())))
        return region, active & region.holds(addresses, size)

    def _tell(self, kind: Kind, pointers: Any, active: NDArray[np.bool_]) -> NDArray[np.bool_]:
        region, inside = self._inside(pointers, active)
        self._hand_over(kind, pointers, active, region, None)
        return inside

    def _hand_over(self, kind: Kind, pointers: Any, active: NDArray[np.bool_], region: Region, changed: NDArray[np.bool_] | None) -> None:
        program, line, size = tuple(self.builder.grid_idx), _line(), _itemsize(pointers)
        addresses, mask = (np.atleast_1d(block) for block in (pointers.data.astype(np.int64), active))
        self.see(Access(self.count, program, kind, line, region.name, addresses, mask, size, changed, self.launch))
        self.count += 1


def _mask(mask: Any) -> NDArray[np.bool_]:
    """A mask is a handle, or where Triton 3.6 lowers a block pointer a bare array."""
    return np.asarray(mask if isinstance(mask, np.ndarray) else mask.data, dtype=np.bool_)


def _itemsize(pointers: Any) -> int:
    return int(_get_np_dtype(pointers.get_element_ty()).itemsize)


def _line() -> int:
    """The line of the kernel's source that is being interpreted: the first frame that is neither ours nor Triton's."""
    frame = sys._getframe(1)
    while frame.f_back is not None and (frame.f_code.co_filename == __file__ or frame.f_code.co_filename.startswith(INSIDE_TRITON)):
        frame = frame.f_back
    return frame.f_lineno
