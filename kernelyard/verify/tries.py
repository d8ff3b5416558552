"""One failure and the cases that may be it: each run in a `Worker` with a time limit, because the kernel may crash or hang.

A case counts only inside the kernel's declared support, and where it ends with the same status and the same kind of fault.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from kernelyard.errors import InvalidInput
from kernelyard.registry.kernel import Kernel
from kernelyard.registry.matrix import point_payload
from kernelyard.registry.op import Op
from kernelyard.registry.spec import DeclarationError, Status
from kernelyard.verify.check import fits
from kernelyard.verify.isolation import Worker
from kernelyard.verify.jobs import CHECK_CASE
from kernelyard.verify.journal import Where
from kernelyard.verify.outcome import CaseResult

TRY_S, HANG_S = 60.0, 10.0
"""Seconds for one try: a build and the checks of a small case; for a kernel that hangs, less, since every try that counts takes it all."""

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


def same_fault(reason: str, original: str) -> bool:
    """Whether both name a fault of one kind, shown by no other run than the original's."""
    before = {fault for fault in FAULTS if fault in original}
    same = not before or any(fault in reason for fault in before)
    return same and all(run in original for run in RUNS if run in reason)


@dataclass
class Tries:
    """Runs of what may be the same failure as the original's, each case once.

    `reason` is the original's, once that has shown; `deadline` is on the monotonic clock.
    """

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
        key = key_of(subject)
        if key not in self.known:
            if time.monotonic() > self.deadline:
                return False
            self.known[key] = self.run(subject) if inside(subject) else ""
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


def key_of(subject: Subject) -> str:
    """Equal for equal cases."""
    return repr((subject.where.as_list(), sorted(subject.values.items())))


def inside(subject: Subject) -> bool:
    """Whether the kernel declares to support the case, and its space has the config there."""
    try:
        workload = subject.op.workload(subject.where.point, subject.device)
        return bool(fits(subject.kernel, workload)) and bool(subject.kernel.space.allows(subject.where.config, workload))
    except (DeclarationError, InvalidInput, ArithmeticError, LookupError):
        return False
