"""What each load, store and atomic of a kernel did, summed over its programs in little memory.

Most programs repeat one pattern of addresses at another place. So of every execution only the pattern is kept, once, with a
count: the offsets from a sector's start, and the mask. Sectors are counted at the end, when all executions have told how
wide an access may be. Where patterns don't repeat (a gather), they are counted early, at the width known by then.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from kernelyard.measure.indexing import SECTOR_BYTES, Cost, Layout, Width, blocked, cost, width
from kernelyard.registry.tracing import Access, Kind, Program, Region

MOST_KEPT_BYTES = 64 << 20
Key = tuple[int, Kind, str, tuple[int, ...], int]
"""An instruction: source line, kind, tensor, block shape, bytes of an element."""


def key(access: Access) -> Key:
    """The instruction that an access is an execution of."""
    return access.line, access.kind, access.tensor, access.addresses.shape, access.itemsize


def covered(access: Access, region: Region) -> NDArray[np.int64]:
    """Every byte that active lanes reach inside the region, counted from its start; repeated where lanes overlap."""
    inside = access.mask & region.holds(access.addresses, access.itemsize)
    first = access.addresses[inside] - region.address
    return (first[:, None] + np.arange(access.itemsize)).ravel()


@dataclass(slots=True)
class _Pattern:
    addresses: NDArray[np.int64]
    mask: NDArray[np.bool_]
    times: int = 0


@dataclass(slots=True)
class Instruction:
    """One instruction's sums. `touched` marks the bytes of its tensor that it reached; `programs` counts those that ran it."""

    key: Key
    num_warps: int
    touched: NDArray[np.bool_]
    programs: int = 0
    lanes: int = 0
    active: int = 0
    allowed: Width | None = None
    _last: Program | None = None
    _cost: Cost = field(default_factory=Cost)
    _patterns: dict[bytes, _Pattern] = field(default_factory=dict)
    _kept_bytes: int = 0

    @property
    def block(self) -> tuple[int, ...]:
        """The shape of what one execution accesses."""
        return self.key[3]

    @property
    def width(self) -> Width:
        """What all executions so far allow."""
        return self.allowed or Width((1,) * len(self.block), 1, 1)

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return self.key[4]

    def add(self, access: Access, reached: NDArray[np.int64]) -> None:
        """One execution, and the bytes of the region that it reached."""
        self.programs += access.program != self._last
        self._last = access.program
        self.lanes += access.mask.size
        self.active += int(access.mask.sum())
        self.touched[reached] = True
        self._pattern(access).times += 1

    def _pattern(self, access: Access) -> _Pattern:
        relative = access.addresses - int(access.addresses.flat[0]) // SECTOR_BYTES * SECTOR_BYTES
        name = hashlib.blake2b(relative.tobytes() + access.mask.tobytes(), digest_size=16).digest()
        if name not in self._patterns:
            allowed = width(relative, access.mask, access.itemsize)
            self.allowed = allowed if self.allowed is None else self.allowed.both(allowed)
            if self._kept_bytes > MOST_KEPT_BYTES:
                self.settle(self.layout(self.allowed.aligned))
            self._patterns[name] = _Pattern(relative, access.mask.copy())
            self._kept_bytes += relative.nbytes + access.mask.nbytes
        return self._patterns[name]

    def layout(self, held: int) -> Layout:
        """How the block is spread over threads that hold so many neighbours each."""
        return blocked(self.block, held, self.width.order, self.num_warps)

    def settle(self, layout: Layout) -> Cost:
        """Requests and sectors of all executions so far; the patterns go."""
        for pattern in self._patterns.values():
            once = cost(pattern.addresses, pattern.mask, self.itemsize, layout, layout.at_once(self.width))
            self._cost = self._cost.plus(once, pattern.times)
        self._patterns.clear()
        self._kept_bytes = 0
        return self._cost


def layouts(instructions: Iterable[Instruction]) -> dict[Key, Layout]:
    """The layout of each: a load holds as much as any access of the same block shape and order, others only what they can move."""
    everything = list(instructions)
    most: dict[tuple[tuple[int, ...], tuple[int, ...]], int] = {}
    for one in everything:
        alike = (one.block, one.width.order)
        most[alike] = max(most.get(alike, 1), one.width.aligned)
    return {one.key: one.layout(most[one.block, one.width.order] if one.key[1] == "load" else one.width.aligned) for one in everything}
