"""Tensors inside larger buffers, so that a store or a load past their ends shows.

An output stands between guard bytes that must be the same bits afterwards, and is poisoned before each run. An input
stands in NaN: a load past its end poisons the result, and any store into the buffer, element or surroundings, is seen.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kernelyard.verify import compare

GUARD_BYTE = 0xA5
POISON_BYTE = 0xFF
"""All ones is a NaN in every float dtype, and one that arithmetic hardly ever makes by itself."""
FINITE_BYTE = 0x3C
"""Repeated, a finite number in every float dtype."""

SURROUND: dict[torch.dtype, tuple[torch.dtype, int]] = {
    torch.float16: (torch.int16, 0x7E11),
    torch.bfloat16: (torch.int16, 0x7FD1),
    torch.float32: (torch.int32, 0x7FC5A5A5),
    torch.float64: (torch.int64, 0x7FF8A5A5A5A5A5A5),
}
"""NaNs by their bits, different from the poison: copied into an output, they are told from what was never written."""

LEAST_GUARD, MOST_GUARD = 4096, 1 << 19
"""A guard holds the row that a kernel writes too many: 4 KiB at least, 512 KiB (a float32 row of 131072) at most."""


@dataclass(frozen=True)
class Guarded:
    """`tensor` lies in `buffer` (bytes) from `start` to `end`; what is outside, and gaps between rows, is not its own."""

    buffer: Tensor
    tensor: Tensor
    start: int
    end: int

    def span(self) -> Tensor:
        """The region as one row of elements, in the order of memory."""
        return self.buffer[self.start : self.end].view(self.tensor.dtype)


def within(region: Guarded, buffer: Tensor) -> Tensor:
    """The tensor's elements in another buffer of the same layout, such as a copy of the region's."""
    own, flat = region.tensor, buffer[region.start : region.end].view(region.tensor.dtype)
    return flat.as_strided(own.shape, own.stride(), flat.storage_offset()) if flat.numel() else flat.view(own.shape)


def nbytes(span_bytes: int, row_bytes: int) -> int:
    """What a region takes, its guards included."""
    return span_bytes + 2 * _guard(row_bytes)


def _guard(row_bytes: int) -> int:
    return -(-min(max(2 * row_bytes, LEAST_GUARD), MOST_GUARD) // 256) * 256


def like(tensor: Tensor) -> Guarded:
    """A region of the same shape, strides, dtype, device and misalignment, holding nothing in particular."""
    size = tensor.element_size()
    span = _span(tensor)
    guard = _guard((tensor.shape[-1] if tensor.dim() else 1) * size)
    start = guard + (tensor.data_ptr() % 16 // size * size if span else 0)
    end = start + span * size
    buffer = torch.empty(end + guard, dtype=torch.uint8, device=tensor.device)
    flat = buffer[start:end].view(tensor.dtype)
    view = flat.as_strided(tensor.shape, tensor.stride(), flat.storage_offset()) if span else flat.view(tensor.shape)
    return Guarded(buffer, view, start, end)


def output(tensor: Tensor) -> Guarded:
    """An output's place: guard bytes all around, in the gaps of a strided one too; poisoned later, before each run."""
    region = like(tensor)
    region.buffer.fill_(GUARD_BYTE)
    return region


def poison(region: Guarded, byte: int = POISON_BYTE) -> None:
    """Fills the elements, and only these, with a byte: by default a NaN that no kernel writes."""
    if region.tensor.is_contiguous():
        region.buffer[region.start : region.end].fill_(byte)
    else:
        pattern = torch.full((region.tensor.element_size(),), byte, dtype=torch.uint8, device=region.buffer.device)
        region.tensor.copy_(pattern.view(region.tensor.dtype))


def poison_span(region: Guarded) -> None:
    """Fills the whole region with NaN: for inputs, whose elements a stride of 0 may repeat."""
    region.buffer[region.start : region.end].fill_(POISON_BYTE)


def unwritten(tensor: Tensor) -> Tensor:
    """Where the poison still stands, by its bits."""
    kind = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
    return tensor.contiguous().view(kind) == -1


def astray(region: Guarded) -> str:
    """Where guard bytes were overwritten, in words; empty when none were."""
    before, after = region.buffer[: region.start], region.buffer[region.end :]
    size = region.tensor.element_size()
    found = []
    if (count := _changed(before)) > 0:
        found.append(f"{_elements(count, size)} before its start")
    if (count := _changed(after)) > 0:
        last = int((after != GUARD_BYTE).nonzero().max()) // size + 1  # of 512 KiB at most
        found.append(f"{_elements(count, size)} past its end (the farthest is {last} past)")
    if not region.tensor.is_contiguous() and region.end > region.start and (count := _changed_gaps(region)) > 0:
        found.append(f"{_elements(count, size)} in the gaps between its rows")
    return " and ".join(found)


def surround(tensor: Tensor, with_nan: bool = True) -> Guarded:
    """A copy of an input, gaps and overlaps as they are, in NaN (or in zeros)."""
    region = like(tensor)
    if with_nan and tensor.dtype in SURROUND:
        kind, bits = SURROUND[tensor.dtype]
        size = tensor.element_size()
        region.buffer[: region.buffer.numel() // size * size].view(kind).fill_(bits)
    else:
        region.buffer.zero_()
    write(region, tensor)
    return region


def write(region: Guarded, values: Tensor) -> None:
    """Puts the values of a tensor of the same shape and strides in place, at the same addresses."""
    if region.end == region.start:
        return
    _once(region.tensor).copy_(_once(values))


def _span(tensor: Tensor) -> int:
    """Elements from the first to the last in memory."""
    return 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True)) if tensor.numel() else 0


def _once(tensor: Tensor) -> Tensor:
    """The tensor with each dimension that a stride of 0 repeats cut to one."""
    once = [min(n, 1) if s == 0 else n for n, s in zip(tensor.shape, tensor.stride(), strict=True)]
    return tensor.as_strided(once, tensor.stride())


def _changed(guard: Tensor) -> int:
    return int((guard != GUARD_BYTE).sum())


def _changed_gaps(region: Guarded) -> int:
    """Bytes between the elements of a strided tensor that are no longer guard bytes."""
    own = torch.zeros(_span(region.tensor), dtype=torch.bool, device=region.buffer.device)
    own.as_strided(_once(region.tensor).shape, region.tensor.stride()).fill_(True)
    size, changed = region.tensor.element_size(), 0
    step = compare.CUDA_CHUNK // size
    for at in range(0, own.numel(), step):
        content = region.buffer[region.start + at * size : min(region.start + (at + step) * size, region.end)].view(-1, size)
        changed += int(((content != GUARD_BYTE) & ~own[at : at + step, None]).sum())
    return changed


def _elements(count: int, size: int) -> str:
    elements = max(1, -(-count // size))
    return f"{elements} element{'s' if elements > 1 else ''}"
