"""Arguments to time with: several sets in memory of their own, taken in turn, so that no call finds the last one's data in cache."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernelyard.registry.lazy import torch
from kernelyard.registry.op import TIMED_SEED

if TYPE_CHECKING:
    from torch import Tensor

    from kernelyard.registry.op import Op
    from kernelyard.registry.spec import Workload

MB = 1 << 20
CPU_LEAST_BYTES = 64 * MB  # past every private cache; enough where the last level can't be flushed anyway
CPU_MOST_BYTES = 192 * MB  # filling more costs longer than the timing itself
MOST_SETS = 4096

Pair = tuple[tuple[Any, ...], tuple[Any, ...]]
"""(outputs, arguments) of one call."""


@dataclass
class Rotation:
    """Sets of outputs and arguments of one workload. Every candidate draws from the same turn, so that none follows itself.

    `cache` says in words what the rotation does to caches; `set_bytes` is the size of one set.
    """

    sets: list[Pair]
    set_bytes: int
    cache: str

    def __post_init__(self) -> None:
        self.turn: Iterator[Pair] = itertools.cycle(self.sets)

    @property
    def total_bytes(self) -> int:
        """Bytes of all sets."""
        return self.set_bytes * len(self.sets)


def rotation(op: Op, workload: Workload) -> Rotation:
    """Sets for a workload on its device: random values typical of the op, those that its cost model is of, outputs allocated."""
    args = op.inputs(workload, torch.Generator(device=workload.device).manual_seed(TIMED_SEED))
    return rotate(op.empty(*args), args, workload.device)


def rotate(outputs: tuple[Any, ...], args: tuple[Any, ...], device_type: str) -> Rotation:
    """The given set and copies of it, as many as the device's cache asks for."""
    size = sum(_span_bytes(value) for value in (*outputs, *args) if hasattr(value, "untyped_storage"))
    count, cache = (_cuda_sets if device_type == "cuda" else _cpu_sets)(max(size, 1))
    pristine: Pair = (outputs, args)
    copies = [(tuple(map(_copy, outputs)), tuple(map(_copy, args))) for _ in range(count - 1)]
    return Rotation([pristine, *copies], size, cache)


def _cpu_sets(size: int) -> tuple[int, str]:
    last_level = last_level_cache_bytes()
    flushable = bool(last_level) and 2 * last_level <= CPU_MOST_BYTES
    target = max(2 * last_level, CPU_LEAST_BYTES) if flushable else CPU_LEAST_BYTES
    count = min(max(-(-target // size), 2), MOST_SETS)
    if count * size > _memory_bytes() // 4:
        count = 1
    total = count * size
    text = f"rotated {total / MB:.3g} MB in {count} sets"
    if not last_level:
        return count, f"{text}; size of the last-level cache unknown"
    if total < 2 * last_level:
        text += f"; the last-level cache of {last_level / MB:.0f} MB is not flushed"
    return count, text


def _cuda_sets(size: int) -> tuple[int, str]:
    """Three times the L2 where 200 sets reach that; smaller workloads have one set for each of a graph's 200 calls, and L2 is flushed."""
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    free, _ = torch.cuda.mem_get_info()
    count = min(max(-(-3 * properties.L2_cache_size // size), 2), 200)
    count = max(min(count, int(free * 0.4) // size), 1)
    total = count * size
    flushed = "" if total > 2 * properties.L2_cache_size else f"; L2 of {properties.L2_cache_size / MB:.0f} MB flushed before every pass"
    return count, f"rotated {total / MB:.3g} MB in {count} sets{flushed}"


def _span(tensor: Tensor) -> int:
    """Elements from the first to the last that the tensor reaches."""
    if tensor.numel() == 0:
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))


def _span_bytes(tensor: Tensor) -> int:
    return _span(tensor) * tensor.element_size()


def _copy(value: Any) -> Any:
    """A tensor with the same values, strides and 16-byte alignment in memory of its own; other values as they are."""
    if not hasattr(value, "untyped_storage"):
        return value
    span = _span(value)
    offset = (value.data_ptr() % 16) // value.element_size()
    flat = torch.empty(span + offset, dtype=value.dtype, device=value.device)
    if span:
        flat[offset:].copy_(value.as_strided((span,), (1,), value.storage_offset()))
    return flat.as_strided(value.shape, value.stride(), offset)


@lru_cache(maxsize=1)
def last_level_cache_bytes() -> int:
    """Size of the CPU's largest cache; 0 where the system does not tell."""
    sizes = [0]
    for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = path.read_text().strip()
        factor = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text[-1:], 1)
        sizes.append(int(text.rstrip("KMG")) * factor)
    return max(sizes)


@lru_cache(maxsize=1)
def _memory_bytes() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return 8 << 30
