"""A small model of how a block of elements becomes memory traffic: (grid, program, warp, lane) -> address -> 32-byte sector.

A grid of programs; each program has `num_warps` warps of 32 lanes; a load of a block of elements is spread over them by a
layout; a *request* is what the 32 lanes of one warp ask for in one instruction, up to 16 bytes a lane; memory answers in
sectors of 32 bytes. So 32 lanes that read neighbouring 4-byte elements make a request of 4 sectors, and 32 lanes that read
every eighth element one of 32 sectors for the same 128 bytes.

The layout is the one that Triton's coalescing pass gives a load or store by default (`lib/Dialect/TritonGPU/Transforms/Coalesce.cpp`,
`getNumElementsPerThread` in `Utility.cpp` beside it, and the builder of `BlockedEncodingAttr` in `TritonGPUAttrDefs.td`):

- dimensions are taken in falling order of contiguity, the last first among equals;
- a thread holds as many neighbours of the first as are contiguous, aligned and at most 16 bytes, if the block has that many a thread;
- a load takes over the most that any access of the same block shape and order holds, and so may hold more than it can move at once;
- lanes, then warps, are laid along the first dimension until the block ends, the rest along the last; what is still left repeats.

Held against the compiler's own layouts for the Triton kernels that come with kernelyard (3.6 and 3.9): they are the same.

Contiguity and alignment are here read off the addresses that every program really used, where the compiler has to prove them: the
model's width is what the addresses allow, and the widest access of the compiled code, reported beside it, what the compiler made.
A mask that changes inside a thread's elements cuts its access, as it does in Triton. Where a block has fewer elements than
threads, the lanes that repeat an element are left out. Caches are not modelled: a sector is counted for each request that needs it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

LANES, SECTOR_BYTES, VECTOR_BYTES = 32, 32, 16
Addresses = NDArray[np.int64]
Mask = NDArray[np.bool_]
Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Width:
    """What a block allows: `contiguity` along each dimension, `aligned` neighbours a thread, `at_once` in one access of it.

    All in elements. `aligned` comes from the addresses alone and ends at 16 bytes; `at_once` is cut by the mask.
    """

    contiguity: Shape
    aligned: int
    at_once: int

    @property
    def order(self) -> Shape:
        """Dimensions from the most contiguous; the last first among equals."""
        return tuple(sorted(range(len(self.contiguity)), key=lambda d: (-self.contiguity[d], -d)))

    def both(self, other: Width) -> Width:
        """What two executions of one instruction allow: it is compiled once for all."""
        least = tuple(map(min, self.contiguity, other.contiguity))
        return Width(least, min(self.aligned, other.aligned), min(self.at_once, other.at_once))


def width(addresses: Addresses, mask: Mask, itemsize: int) -> Width:
    """The widest access that this block allows."""
    contiguity = tuple(_contiguity(addresses, axis, itemsize) for axis in range(addresses.ndim))
    axis = Width(contiguity, 1, 1).order[0]
    aligned = min(contiguity[axis], max(VECTOR_BYTES // itemsize, 1))
    along = np.moveaxis(addresses, axis, -1)
    while aligned > 1 and (along[..., ::aligned] % (aligned * itemsize)).any():
        aligned //= 2
    lines = np.moveaxis(mask, axis, -1)
    changes = _places(lines[..., 1:] != lines[..., :-1])
    return Width(contiguity, aligned, _power_of_two(math.gcd(aligned, *changes)))


def _contiguity(addresses: Addresses, axis: int, itemsize: int) -> int:
    """The longest power of two of neighbours along a dimension of which every aligned group is contiguous."""
    breaks = _places(np.diff(np.moveaxis(addresses, axis, -1), axis=-1) != itemsize)
    return _power_of_two(math.gcd(addresses.shape[axis], *breaks))


def _places(changes: Mask) -> list[int]:
    """Positions along the last dimension before which any line changes."""
    anywhere = changes.reshape(-1, changes.shape[-1]).any(axis=0) if changes.size else np.zeros(0, np.bool_)
    places: list[int] = (np.flatnonzero(anywhere) + 1).tolist()
    return places


def _power_of_two(value: int) -> int:
    return value & -value if value else 1


@dataclass(frozen=True, slots=True)
class Layout:
    """Triton's blocked layout: for each dimension, neighbours a thread, lanes of a warp, warps of a program; `order` fastest first."""

    held: Shape
    lanes: Shape
    warps: Shape
    order: Shape

    def at_once(self, allowed: Width) -> int:
        """Elements that a lane moves in one access: no more than it holds."""
        return min(allowed.at_once, math.prod(self.held))


def blocked(shape: Shape, held: int, order: Shape, num_warps: int) -> Layout:
    """The default layout of a block of `shape` whose threads hold `held` neighbours along order[0]."""
    rank, threads = len(shape), num_warps * LANES
    sizes, lanes, warps = [1] * rank, [1] * rank, [1] * rank
    sizes[order[0]] = min(held, max(math.prod(shape) // threads, 1))
    lanes_left, warps_left, threads_left = LANES, num_warps, threads
    for d in order[:-1]:
        wanted = _clamp(threads_left, 1, max(shape[d] // sizes[d], 1))
        lanes[d] = _clamp(wanted, 1, lanes_left)
        warps[d] = _clamp(wanted // lanes[d], 1, warps_left)
        lanes_left, warps_left, threads_left = lanes_left // lanes[d], warps_left // warps[d], threads_left // wanted
    lanes[order[-1]] = LANES // math.prod(lanes)
    warps[order[-1]] = num_warps // math.prod(warps)
    return Layout(tuple(sizes), tuple(lanes), tuple(warps), order)


def _clamp(value: int, least: int, most: int) -> int:
    return max(least, min(value, most))


@lru_cache(maxsize=64)
def requests(shape: Shape, layout: Layout, at_once: int) -> NDArray[np.int64]:
    """(requests, 32 lanes, at_once): which element of the flattened block each lane asks for, -1 for none.

    In order of warp within repetition of the layout, so the first is warp 0's.
    """
    rest = np.indices(shape).reshape(len(shape), -1)
    held, lane, warp, turn = parts = tuple(np.zeros(rest.shape[1], np.int64) for _ in range(4))
    steps = [1, 1, 1, 1]
    for d in layout.order:
        sizes = [layout.held[d], layout.lanes[d], layout.warps[d]]
        sizes.append(-(-shape[d] // math.prod(sizes)))
        for part, size in enumerate(sizes):
            parts[part][:] += rest[d] % size * steps[part]
            rest[d] //= size
            steps[part] *= size
    pieces = steps[0] // at_once
    request = (turn * steps[2] + warp) * pieces + held // at_once
    table = np.full((steps[3] * steps[2] * pieces, LANES, at_once), -1, np.int64)
    table[request, lane, held % at_once] = np.arange(rest.shape[1])
    table = table[(table >= 0).any(axis=(1, 2))]  # not of warps that only repeat others
    table.setflags(write=False)
    return table


@dataclass(frozen=True, slots=True)
class Cost:
    """Requests with an active lane, the sectors that they touch, and the fewest that their bytes fit into."""

    requests: int = 0
    sectors: int = 0
    ideal: int = 0

    def plus(self, other: Cost, times: int = 1) -> Cost:
        """Both, the other several times."""
        return Cost(self.requests + times * other.requests, self.sectors + times * other.sectors, self.ideal + times * other.ideal)


def cost(addresses: Addresses, mask: Mask, itemsize: int, layout: Layout, at_once: int) -> Cost:
    """Of one execution, `at_once` elements a lane and request."""
    elements = requests(addresses.shape, layout, at_once)
    table = elements.reshape(len(elements), -1)
    active = (table >= 0) & mask.ravel()[table]
    return _count(np.where(active, addresses.ravel()[table], np.iinfo(np.int64).max), active, itemsize)


def _count(asked: Addresses, active: Mask, itemsize: int) -> Cost:
    """One row a request. Inactive lanes hold the largest integer and so come last."""
    asked = np.sort(asked, axis=1)
    there = np.sort(~active, axis=1) == 0
    distinct = (there & _first(asked)).sum(axis=1)
    touched = (there & _first(asked // SECTOR_BYTES)).sum(axis=1)
    if (asked[there] % itemsize).any():  # an element may lie across two sectors
        touched = np.array([_sectors(row[here], itemsize) for row, here in zip(asked, there, strict=True)])
    ideal = -(-distinct * itemsize // SECTOR_BYTES)
    return Cost(int(active.any(axis=1).sum()), int(touched.sum()), int(ideal.sum()))


def _first(rows: Addresses) -> Mask:
    """Where a sorted row's value differs from the one before."""
    return np.concatenate([np.ones((len(rows), 1), np.bool_), rows[:, 1:] != rows[:, :-1]], axis=1)


def _sectors(addresses: Addresses, itemsize: int) -> int:
    return len(np.union1d(addresses // SECTOR_BYTES, (addresses + itemsize - 1) // SECTOR_BYTES))


@dataclass(frozen=True, slots=True)
class Lane:
    """What one lane asks for: offsets of its active elements in bytes from the tensor's start, and the sectors that those lie in."""

    lane: int
    offsets: Sequence[int]
    sectors: Sequence[int]


def lanes(addresses: Addresses, mask: Mask, itemsize: int, layout: Layout, at_once: int, start: int) -> tuple[Lane, ...]:
    """The first request of warp 0, lane by lane. `start` is the tensor's address; sectors count from it."""
    flat, on = addresses.ravel(), mask.ravel()
    found = []
    for lane, elements in enumerate(requests(addresses.shape, layout, at_once)[0].tolist()):
        offsets = [int(flat[e]) - start for e in elements if e >= 0 and on[e]]
        touched = {s for o in offsets for s in (o // SECTOR_BYTES, (o + itemsize - 1) // SECTOR_BYTES)}
        found.append(Lane(lane, offsets, sorted(touched)))
    return tuple(found)
