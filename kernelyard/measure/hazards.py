"""What a trace shows to be wrong: accesses outside a tensor, programs that meet at an address, outputs read before they are written.

The interpreter runs programs one after the other. So it never shows the wrong result of a race, but it shows every meeting: when one
program reaches an address that another has stored to, or stores to one that another has loaded, a GPU could have run
the two in either order or at once. Only atomics may meet. An order that the kernel itself makes (a lock of atomics, a counter of
finished programs) is not understood, and such a kernel is reported: judge it by hand. Between two launches there is an order.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from kernelyard.registry.tracing import Access, Program, Region

Hazard = Literal["out-of-bounds", "write race", "read race", "read-before-write"]
NOBODY, SEVERAL, EARLIER = -1, -2, -3


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault of one instruction, the first place it was met at, and how often.

    `element` counts from the tensor's start, and of an out-of-bounds access is the farthest outside. `other` is the program met
    (None where several were, or none), `differ` whether a race's stores had different values. `elements` sums over executions: one that is
    met again counts again.
    """

    kind: Hazard
    access: str
    line: int
    tensor: str
    program: Program
    element: int
    elements: int
    role: str
    numel: int
    other: Program | None = None
    differ: bool = False

    def sentence(self) -> str:
        """What was found, where."""
        return _SENTENCES[self.kind](self)


def _ways(one: Finding) -> str:
    times = f"{one.elements} element{'s' if one.elements != 1 else ''}"
    return f"line {one.line}: {times} of {one.tensor}"


def _outside(one: Finding) -> str:
    past = one.element - one.numel + 1
    where = f"{past} past its end" if past > 0 else f"{-one.element} before its start"
    verb = {"load": "read", "store": "written"}.get(one.access, "changed atomically")
    return (
        f"{_ways(one)} {verb} out of bounds: the farthest is {where} (index {one.element}, the tensor spans {one.numel} elements), "
        f"in program {one.program}."
    )


def _both_write(one: Finding) -> str:
    values = "with different values: the last one wins" if one.differ else "with the same value"
    return (
        f"{_ways(one)} stored by program {one.program} that {_whom(one.other)} had stored to, not atomically, {values} "
        f"(first: index {one.element})."
    )


def _both_meet(one: Finding) -> str:
    if one.access == "load":
        said = f"loaded by program {one.program} that {_whom(one.other)} had stored"
    else:
        said = f"stored by program {one.program} that {_whom(one.other)} had loaded"
    return f"{_ways(one)} {said}: a GPU runs the two in any order (first: index {one.element})."


def _too_early(one: Finding) -> str:
    return f"{_ways(one)}, an output, read by program {one.program} before anything was written there (first: index {one.element})."


def _whom(other: Program | None) -> str:
    return "another program" if other is None else f"program {other}"


_SENTENCES = {"out-of-bounds": _outside, "write race": _both_write, "read race": _both_meet, "read-before-write": _too_early}


@dataclass(slots=True)
class Watch:
    """Who loaded and stored every byte of a region: a program's number, `NOBODY`, `SEVERAL`, or `EARLIER` for a launch before.

    9 bytes for each byte watched.
    """

    region: Region
    loaded_by: NDArray[np.int32] = field(init=False)
    stored_by: NDArray[np.int32] = field(init=False)
    plainly: NDArray[np.bool_] = field(init=False)

    def __post_init__(self) -> None:
        self.loaded_by = np.full(self.region.nbytes, NOBODY, np.int32)
        self.stored_by = np.full(self.region.nbytes, NOBODY, np.int32)
        self.plainly = np.zeros(self.region.nbytes, np.bool_)

    def meet(self, access: Access, reached: NDArray[np.int64], me: int) -> Iterable[tuple[Hazard, NDArray[np.int64], int]]:
        """Hazards of an access that reaches these bytes: kind, bytes, the other program's number. Then it is on record."""
        if access.kind != "store" and self.region.role == "output":
            yield "read-before-write", reached[self.stored_by[reached] == NOBODY], NOBODY
        writer, reader = self.stored_by[reached], self.loaded_by[reached]
        theirs = (writer != NOBODY) & (writer != EARLIER) & (writer != me)
        if access.kind == "load":
            yield "read race", reached[theirs], _one(writer[theirs])
            self.loaded_by[reached] = np.where((reader == NOBODY) | (reader == me), me, SEVERAL)
            return
        if access.kind == "atomic":
            theirs &= self.plainly[reached]
        yield "write race", reached[theirs], _one(writer[theirs])
        loaded = (reader != NOBODY) & (reader != me)
        yield "read race", reached[loaded], _one(reader[loaded])
        alone = (writer == NOBODY) | (writer == EARLIER) | (writer == me)
        self.stored_by[reached] = np.where(alone, me, SEVERAL)
        self.plainly[reached] |= access.kind == "store"

    def end_launch(self) -> None:
        """The next launch sees what was stored, and meets no program of this one."""
        self.stored_by[self.stored_by != NOBODY] = EARLIER
        self.loaded_by[:] = NOBODY
        self.plainly[:] = False


def _one(programs: NDArray[np.int32]) -> int:
    return int(programs[0]) if programs.size else NOBODY


@dataclass(slots=True)
class Hazards:
    """Findings so far, one for each kind and instruction, and the programs in the order they ran."""

    regions: dict[str, Region]
    _watches: dict[str, Watch] = field(default_factory=dict)
    _programs: list[Program] = field(default_factory=list)
    _launch: int = 0
    _found: dict[tuple[Hazard, int, str, str], Finding] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._watches = {name: Watch(region) for name, region in self.regions.items()}

    @property
    def findings(self) -> tuple[Finding, ...]:
        """In the order in which each was first met."""
        return tuple(self._found.values())

    def add(self, access: Access, reached: NDArray[np.int64]) -> None:
        """One access, and the bytes of its region that it reached."""
        if not self._programs or self._programs[-1] != access.program or access.launch != self._launch:
            self._programs.append(access.program)
        if access.launch != self._launch:
            self._launch = access.launch
            for seen in self._watches.values():
                seen.end_launch()
        self._outside(access)
        watch, me = self._watches[access.tensor], len(self._programs) - 1
        for kind, where, other in watch.meet(access, reached, me):
            if where.size:
                met = self._programs[other] if other >= 0 else None
                elements = np.unique(where // watch.region.itemsize)
                differ = kind == "write race" and access.changed is not None and self._differ(access, where)
                self._note(access, kind, int(elements[0]), len(elements), met, differ)

    def _differ(self, access: Access, where: NDArray[np.int64]) -> bool:
        """Whether the store changed any of these bytes' elements."""
        assert access.changed is not None
        offsets = access.addresses[access.mask] - self.regions[access.tensor].address
        met = np.isin(offsets[:, None] + np.arange(access.itemsize), where).any(axis=1)
        return bool(access.changed[access.mask][met].any())

    def _outside(self, access: Access) -> None:
        region = self.regions[access.tensor]
        astray = access.addresses[access.mask & ~region.holds(access.addresses, access.itemsize)]
        if astray.size:
            elements = np.floor_divide(astray - region.address, region.itemsize)
            span = region.nbytes // region.itemsize
            farthest = elements[np.argmax(np.maximum(elements - span + 1, -elements))]
            self._note(access, "out-of-bounds", int(farthest), len(np.unique(elements)), None, False)

    def _note(self, access: Access, kind: Hazard, element: int, elements: int, other: Program | None, differ: bool) -> None:
        """The first of its kind and instruction, or a known one that goes on; of out-of-bounds the farthest is named."""
        region = self.regions[access.tensor]
        name = (kind, access.line, access.tensor, access.kind)
        new = Finding(
            kind, access.kind, access.line, access.tensor, access.program, element, elements,
            region.role, region.nbytes // region.itemsize, other, differ,
        )  # fmt: skip
        old = self._found.get(name)
        if old is not None:
            named = new if kind == "out-of-bounds" and _distance(new) > _distance(old) else old
            new = replace(named, elements=old.elements + elements, differ=old.differ or differ)
        self._found[name] = new


def _distance(one: Finding) -> int:
    return max(one.element - one.numel + 1, -one.element)
