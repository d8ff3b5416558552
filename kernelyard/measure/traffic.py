"""A traced kernel's memory traffic: what each instruction asked for, what of that is unique, and what the op's model says.

*Requested* bytes are active lanes times the size of an element. *Unique* bytes are counted once however often they are asked
for: what a memory behind a perfect cache would move, and so what is set against the model, which is a lower bound of the op.
A kernel that walks its rows twice has unique bytes equal to the model and requests half as much again; whether the second walk
reaches memory or a cache is not for a trace to say.

Tracing needs no GPU: a backend's builder interprets the kernel (`registry.tracing`). Programs run one after the other; what
follows from that for races is told in `hazards`. Sectors and requests are those of the model in `indexing`.
"""

from __future__ import annotations

import linecache
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from kernelyard.errors import Unsupported
from kernelyard.measure.accesses import Instruction, Key, covered, key, layouts
from kernelyard.measure.explaining import Explained, Question, explain
from kernelyard.measure.hazards import Finding, Hazards
from kernelyard.measure.indexing import Layout
from kernelyard.registry.tracing import Access, Kind, Program, Region, Role, Trace

MOST_BYTES = 256 << 20
"""Of all tensors together: every byte watched takes some ten of this machine's."""


@dataclass(frozen=True, slots=True)
class InstructionTraffic:
    """One load, store or atomic. Requests and sectors are those of a warp's 32 lanes; `access_bytes` is what a lane moves at once."""

    line: int
    source: str
    kind: Kind
    tensor: str
    block: tuple[int, ...]
    programs: int
    requested_bytes: int
    unique_bytes: int
    masked_share: float
    access_bytes: int
    layout: Layout
    requests: int
    sectors: int
    ideal_sectors: int


@dataclass(frozen=True, slots=True)
class TensorTraffic:
    """One tensor. An atomic counts as read and as written. `model_bytes` is all its elements once; 0 for a workspace."""

    name: str
    role: Role
    read_requested: int
    read_unique: int
    written_requested: int
    written_unique: int
    model_bytes: int


@dataclass(frozen=True, slots=True)
class Traffic:
    """What a trace came to. `model_bytes` is the op's own figure for the workload."""

    function: str
    grid: Program
    num_warps: int
    instructions: tuple[InstructionTraffic, ...]
    tensors: tuple[TensorTraffic, ...]
    model_bytes: int
    findings: tuple[Finding, ...]
    explained: Explained | None

    @property
    def unique_bytes(self) -> int:
        """Read and written, each once."""
        return sum(t.read_unique + t.written_unique for t in self.tensors)

    @property
    def requested_bytes(self) -> int:
        """Read and written, as often as asked for."""
        return sum(t.read_requested + t.written_requested for t in self.tensors)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        findings = [asdict(finding) | {"sentence": finding.sentence()} for finding in self.findings]
        totals = {"unique_bytes": self.unique_bytes, "requested_bytes": self.requested_bytes}
        ratios = {f"{name}_ratio": size / self.model_bytes if self.model_bytes else None for name, size in
                  (("unique", self.unique_bytes), ("requested", self.requested_bytes))}  # fmt: skip
        return asdict(self) | {"findings": findings, "totals": totals | {"model_bytes": self.model_bytes} | ratios}


def measure(trace: Trace, model_bytes: int, question: Question | None = None) -> Traffic:
    """Run the trace and sum it up; raises Unsupported where its tensors are too large to watch."""
    total = sum(region.nbytes for region in trace.regions)
    if total > MOST_BYTES:
        do = "Give a smaller --shape: the pattern of addresses is the same."
        raise Unsupported(f"the tensors take {total >> 20} MiB, a trace watches at most {MOST_BYTES >> 20}.", do=do)
    watcher = _Watcher(trace, question)
    trace.run(watcher.see)
    if question is not None and watcher.kept is None:
        lines = ", ".join(str(i.key[0]) for i in watcher.instructions.values())
        raise Unsupported(f"no access that ran is the one to explain: {question}.", exists=f"Lines that access memory: {lines}.")
    return _summed(trace, watcher, model_bytes)


@dataclass(slots=True)
class _Watcher:
    """Sees every access once and keeps sums."""

    trace: Trace
    question: Question | None
    regions: dict[str, Region] = field(init=False)
    hazards: Hazards = field(init=False)
    instructions: dict[Key, Instruction] = field(default_factory=dict)
    kept: Access | None = None

    def __post_init__(self) -> None:
        self.regions = {region.name: region for region in self.trace.regions}
        self.hazards = Hazards(self.regions)

    def see(self, access: Access) -> None:
        """One access, in the order in which they ran."""
        region, name = self.regions[access.tensor], key(access)
        if name not in self.instructions:
            self.instructions[name] = Instruction(name, self.trace.warps(access.launch), np.zeros(region.nbytes, np.bool_))
        reached = covered(access, region)
        self.hazards.add(access, reached)
        self.instructions[name].add(access, reached)
        if self.kept is None and self.question is not None and self.question.asks_for(access):
            self.kept = access


def _summed(trace: Trace, watcher: _Watcher, model_bytes: int) -> Traffic:
    instructions = tuple(watcher.instructions.values())
    spread = layouts(instructions)
    return Traffic(
        trace.function, trace.grid, trace.num_warps,
        tuple(_instruction(one, spread[one.key], trace.file) for one in instructions),
        tuple(_tensor(region, instructions) for region in trace.regions),
        model_bytes, watcher.hazards.findings, _explained(watcher, spread),
    )  # fmt: skip


def _instruction(one: Instruction, layout: Layout, file: str) -> InstructionTraffic:
    line, kind, tensor, block, itemsize = one.key
    total = one.settle(layout)
    return InstructionTraffic(
        line, linecache.getline(file, line).strip(), kind, tensor, block, one.programs, one.active * itemsize, int(one.touched.sum()),
        1 - one.active / one.lanes, layout.at_once(one.width) * itemsize, layout, total.requests, total.sectors, total.ideal,
    )  # fmt: skip


def _tensor(region: Region, instructions: tuple[Instruction, ...]) -> TensorTraffic:
    mine = [one for one in instructions if one.key[2] == region.name]
    read = _bytes([one for one in mine if one.key[1] != "store"])
    written = _bytes([one for one in mine if one.key[1] != "load"])
    model = 0 if region.role == "workspace" else math.prod(region.shape) * region.itemsize
    return TensorTraffic(region.name, region.role, *read, *written, model)


def _bytes(instructions: list[Instruction]) -> tuple[int, int]:
    """(requested, unique)"""
    if not instructions:
        return 0, 0
    touched = np.logical_or.reduce([one.touched for one in instructions])
    return sum(one.active * one.itemsize for one in instructions), int(touched.sum())


def _explained(watcher: _Watcher, spread: Mapping[Key, Layout]) -> Explained | None:
    access = watcher.kept
    if access is None:
        return None
    name = key(access)
    return explain(access, watcher.regions[access.tensor].address, watcher.instructions[name].width, spread[name])
