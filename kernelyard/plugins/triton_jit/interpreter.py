"""Three corrections to Triton's interpreter, without which right kernels fail in it.

Triton 3.6 to 3.9 cuts the low bits off where a GPU rounds float32 to bfloat16 (to nearest, ties to even): twice the error of rounding.
It multiplies the bits of bfloat16 matrices as if they were integers.
Triton 3.6 takes a scalar for a loop's bound by int() of an array with one element, which numpy 2.5 refuses.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import triton.language as tl
from numpy.typing import NDArray
from triton.runtime import interpreter
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

Cast = Callable[[Any, Any, Any], Any]


def correct() -> None:
    """Put all corrections in place in this process; a second call changes nothing."""
    if getattr(InterpreterBuilder.cast_impl, "rounds", False):
        return
    InterpreterBuilder.cast_impl = _rounding(InterpreterBuilder.cast_impl)
    InterpreterBuilder.create_dot = _of_numbers(InterpreterBuilder.create_dot)
    interpreter._patch_lang_tensor = _counting(interpreter._patch_lang_tensor)


def _counting(others: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
    def patch(tensor: Any, scope: Any) -> None:
        others(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    return patch


def _of_numbers(others: Callable[..., Any]) -> Callable[..., Any]:
    def create_dot(self: Any, a: Any, b: Any, *rest: Any) -> Any:
        return others(self, _widened(a), _widened(b), *rest)

    return create_dot


def _widened(matrix: Any) -> Any:
    return TensorHandle(to_float32(matrix.data), tl.float32) if matrix.dtype.scalar == tl.bfloat16 else matrix


def _rounding(others: Cast) -> Cast:
    def cast_impl(self: Any, source: Any, target: Any) -> Any:
        pair = (source.dtype.scalar, target.scalar)
        if pair == (tl.float32, tl.bfloat16):
            return TensorHandle(to_bfloat16(source.data), tl.bfloat16)
        if pair == (tl.bfloat16, tl.float32):
            return TensorHandle(to_float32(source.data), tl.float32)
        return others(self, source, target)

    cast_impl.rounds = True  # type: ignore[attr-defined]
    return cast_impl


def to_bfloat16(values: NDArray[Any]) -> NDArray[np.uint16]:
    """The upper half of each float32 after rounding; a NaN stays one, where carrying into the exponent would make it zero."""
    bits = np.asarray(values, dtype=np.float32, order="C").view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    quiet = (bits >> np.uint32(16)) | np.uint32(0x40)
    return np.where(np.isnan(values), quiet, rounded).astype(np.uint16)


def to_float32(halves: NDArray[Any]) -> NDArray[np.float32]:
    """bfloat16 as the interpreter keeps it, in 16 unsigned bits, widened without loss."""
    return (np.asarray(halves, order="C").view(np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)
