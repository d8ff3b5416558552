"""A failure made small: the smallest sizes and the plainest values that a kernel still fails on, found with Hypothesis.

Each try runs in a `Worker` with a time limit, because the kernel may crash or hang. A try counts only inside the kernel's
declared support, and where it ends with the same status and the same kind of fault: what is shrunk stays one failure.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from kernelyard.errors import Unsupported
from kernelyard.registry.kernel import Kernel
from kernelyard.registry.machine import installed
from kernelyard.registry.op import Op, Point
from kernelyard.registry.spec import DeclarationError, Status
from kernelyard.verify.check import fits
from kernelyard.verify.isolation import Worker
from kernelyard.verify.jobs import CHECK_CASE
from kernelyard.verify.journal import Where, point_payload
from kernelyard.verify.outcome import CaseResult
from kernelyard.verify.plain import KINDS, OWN

TRIES = 3
"""Runs of the failure as it was found, before it is called not reproducible: a race does not show each time."""
TRY_S, HANG_S = 60.0, 5.0
"""Seconds for one try: a build and the checks of a small case; for a kernel that hangs, less, since every try that counts takes it all."""
BUDGET_S = 120.0
"""Seconds for all tries; what was found by then is the answer."""

FAULTS = (
    "store out of bounds", "load out of bounds", "hit memory beside input", "was changed", "shares memory", "left unwritten",
    "reads its own output", "two runs on the same inputs differ", "other data at the same addresses", "inputs at fresh addresses",
    "late write", "side stream", "global state", "replaced a timer", "memory leak", "wrong shape", "wrong dtype", "wrong strides",
    "wrong device", "returned", "raised", "elements differ", "the error of all",
)  # fmt: skip
"""Words by which reasons name their kind of fault."""
RUNS = ("in a second run", "when it allocates", "with other data", "with inputs at fresh", "on a side stream")
"""Words by which reasons name the run that showed it, where that was not the first."""
ASTRAY = ("store out of bounds", "beside input")


@dataclass(frozen=True)
class Subject:
    """A kernel on a device, where it fails, and how."""

    op: Op
    kernel: Kernel
    device: str
    where: Where
    status: Status
    values: dict[str, str] = field(default_factory=dict)

    def payload(self) -> dict[str, Any]:
        """For `jobs.case_job`."""
        where = self.where
        return {
            "op": self.op.name, "kernel": self.kernel.name, "device": self.device, "point": point_payload(where.point),
            "config": dict(where.config), "edge": where.edge, "seed": where.seed, "values": self.values,
        }  # fmt: skip


@dataclass(frozen=True)
class Shrunk:
    """The smallest failing subject found, what the check says of it, and how many cases were run."""

    subject: Subject
    reason: str
    tries: int


def shrink(subject: Subject, worker: Worker, budget_s: float = BUDGET_S) -> Shrunk | None:
    """The failure made small; None where it does not show in `TRIES` runs. Raises Unsupported without hypothesis."""
    if not installed("hypothesis"):
        raise Unsupported("shrinking a failure needs hypothesis, which is not installed.", do="Install kernelyard[repro].")
    tries = _Tries(subject, worker, time.monotonic() + budget_s)
    reasons = (tries.run(subject) for _ in range(TRIES))
    reason = next(filter(None, reasons), "")
    if not reason:
        return None
    tries.reason = reason
    smallest = _search(subject, tries)
    if tries.soiled:
        worker.close()
    return Shrunk(smallest, tries.known.get(_key(smallest), reason), tries.count)


def same_fault(reason: str, original: str) -> bool:
    """Whether both name a fault of one kind, shown by no other run than the original's."""
    before = {fault for fault in FAULTS if fault in original}
    same = not before or any(fault in reason for fault in before)
    return same and all(run in original for run in RUNS if run in reason)


@dataclass
class _Tries:
    original: Subject
    worker: Worker
    deadline: float
    reason: str = ""
    count: int = 0
    soiled: bool = False
    """Whether the worker has run a kernel that stored astray: another failure than that may then come of it."""
    known: dict[str, str] = field(default_factory=dict)

    def fails(self, subject: Subject) -> bool:
        """Whether it fails in the same way. Known cases are not run again; past the deadline no new ones count."""
        key = _key(subject)
        if key not in self.known:
            if time.monotonic() > self.deadline:
                return False
            self.known[key] = self.run(subject) if _inside(subject) else ""
        return bool(self.known[key])

    def run(self, subject: Subject) -> str:
        """What is wrong, where it is what is being shrunk; else empty."""
        self.count += 1
        status, reason = self._run(subject)
        if self.soiled and status is not Status.OK and not self._same(status, reason):
            self.worker.close()  # a fresh child costs seconds: only where an earlier store astray may have mattered
            self.soiled = False
            status, reason = self._run(subject)
        return reason if self._same(status, reason) else ""

    def _run(self, subject: Subject) -> tuple[Status, str]:
        status, reason = run(subject, self.worker, HANG_S if subject.status is Status.TIMED_OUT else TRY_S)
        self.soiled |= astray(reason)
        return status, reason

    def _same(self, status: Status, reason: str) -> bool:
        return status is self.original.status and (not self.reason or same_fault(reason, self.reason))


def astray(reason: str) -> bool:
    """Whether the kernel has written where it should not."""
    return any(words in reason for words in ASTRAY)


def run(subject: Subject, worker: Worker, limit_s: float = TRY_S) -> tuple[Status, str]:
    """The case in a child process: its status, and the reason where that is not OK."""
    outcome = worker.run(CHECK_CASE, subject.payload(), limit_s)
    if outcome.value is None:  # a failure of the checker itself says nothing of the kernel
        return (Status.UNSUPPORTED if "the checker failed" in outcome.reason else outcome.status), outcome.reason
    result = CaseResult(**{**outcome.value, "status": Status(outcome.value["status"])})
    return result.status, result.reason


def _key(subject: Subject) -> str:
    return repr((subject.where.as_list(), sorted(subject.values.items())))


def _inside(subject: Subject) -> bool:
    try:
        workload = subject.op.workload(subject.where.point, subject.device)
        return bool(fits(subject.kernel, workload)) and bool(subject.kernel.space.allows(subject.where.config, workload))
    except (DeclarationError, ArithmeticError, LookupError):
        return False


def _search(subject: Subject, tries: _Tries) -> Subject:
    """Hypothesis lets indices into the options shrink, sizes before the rest, from the failure as it was found."""
    import hypothesis
    from hypothesis import HealthCheck, Phase, Verbosity, strategies
    from hypothesis.database import InMemoryExampleDatabase, choices_to_bytes

    options = _options(subject)
    database = InMemoryExampleDatabase()  # where Hypothesis looks for an example to begin with
    database.save(b"failure", choices_to_bytes([len(choice) - 1 for choice in options]))
    settings = hypothesis.settings(
        database=database, deadline=None, max_examples=100, suppress_health_check=list(HealthCheck),
        verbosity=Verbosity.quiet, phases=(Phase.reuse, Phase.generate, Phase.shrink),
    )  # fmt: skip
    indices = strategies.tuples(*(strategies.integers(0, len(choice) - 1) for choice in options))

    def fails(picked: tuple[int, ...]) -> bool:
        return tries.fails(_picked(subject, options, picked))

    try:
        found = hypothesis.find(indices, fails, settings=settings, random=Random(0), database_key=b"failure")
    except hypothesis.errors.NoSuchExample:  # it does not show each time, and in no try since
        return subject
    return _picked(subject, options, found)


def _options(subject: Subject) -> list[Sequence[Any]]:
    """For each size, then for dtype, layout, statics, edge, seed and each tensor's values: what it may be, simplest first.

    The last is what it was.
    """
    op, where = subject.op, subject.where
    point = where.point
    dtype = "float32" if "float32" in op.dtypes else point.dtype
    kinds = (*KINDS, OWN) if where.edge != "memory" else (OWN,)
    return [
        *(range(1, size + 1) if size else (0,) for size in point.dims),
        _once(dtype, point.dtype), _once("contiguous", point.layout), _once((), point.statics),
        _once("random", where.edge) if where.edge != "memory" else (where.edge,), _once(0, where.seed),
        *(kinds for argument in op.arguments if argument.tensor),
    ]  # fmt: skip


def _once(simple: Any, original: Any) -> tuple[Any, ...]:
    return (simple,) if simple == original else (simple, original)


def _picked(subject: Subject, options: Sequence[Sequence[Any]], indices: Sequence[int]) -> Subject:
    picked = [choice[index] for choice, index in zip(options, indices, strict=True)]
    n = len(subject.where.point.dims)
    dtype, layout, statics, edge, seed = picked[n : n + 5]
    tensors = (argument.name for argument in subject.op.arguments if argument.tensor)
    values = {name: kind for name, kind in zip(tensors, picked[n + 5 :], strict=True) if kind != OWN}
    where = replace(subject.where, point=Point(tuple(picked[:n]), dtype, layout, statics), edge=edge, seed=seed)
    return replace(subject, where=where, values=values)
