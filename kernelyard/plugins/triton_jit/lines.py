"""A matrix as the tensor memory accelerator takes it: lines without gaps inside, at multiples of 16 bytes from each other."""

from __future__ import annotations

from dataclasses import dataclass

from kernelyard.registry.spec import DTYPE_BYTES, TensorSpec


@dataclass(frozen=True, slots=True)
class Lines:
    """`count` lines of `length` elements, `pitch` elements apart; rows of the matrix, or its columns where it is turned."""

    turned: bool
    count: int
    length: int
    pitch: int


def lines(spec: TensorSpec) -> Lines | None:
    """The last two dimensions of a tensor as lines, rows if they are ones; None where there are none, or something is empty."""
    rows, columns = spec.shape[-2:]
    across, down = spec.strides[-2:]
    if not spec.aligned or spec.numel == 0:
        return None
    if _gapless(columns, down) and _apart(spec.dtype, rows, columns, across):
        return Lines(False, rows, columns, _pitch(spec.dtype, rows, columns, across))
    if _gapless(rows, across) and _apart(spec.dtype, columns, rows, down):
        return Lines(True, columns, rows, _pitch(spec.dtype, columns, rows, down))
    return None


def _gapless(length: int, stride: int) -> bool:
    return stride == 1 or length == 1


def _apart(dtype: str, count: int, length: int, stride: int) -> bool:
    """Lines that overlap, as broadcast ones do, are refused: no descriptor of those was tried."""
    return count == 1 or (stride >= length and stride * DTYPE_BYTES[dtype] % 16 == 0)


def _pitch(dtype: str, count: int, length: int, stride: int) -> int:
    """Of a single line, whose stride says nothing, the next one that would be taken."""
    unit = 16 // DTYPE_BYTES[dtype]
    return stride if count > 1 else -(-length // unit) * unit
