"""Trying a kernel at a point, whatever it declares: built and checked in a child process, with a time limit."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch

from kernelyard.errors import Unsupported
from kernelyard.registry import registry
from kernelyard.registry.kernel import Kernel
from kernelyard.registry.matrix import point_from, point_payload
from kernelyard.registry.op import Op
from kernelyard.registry.spec import Status
from kernelyard.verify.check import Case, build_case
from kernelyard.verify.defences import ALL
from kernelyard.verify.envelope import Probe
from kernelyard.verify.isolation import Worker
from kernelyard.verify.jobs import build
from kernelyard.verify.oracle import check_workload
from kernelyard.verify.outcome import CaseResult
from kernelyard.verify.tries import astray

PROBE = "kernelyard.verify.probing:probe_job"
PROBE_S = 60.0
"""Seconds for one point."""
CHECKER, REFUSES = "the checker failed", "then refuses"
"""Words by which reasons name the checker's own failure, and a kernel that refuses a workload."""


@dataclass(frozen=True)
class Tried:
    """A point and how the kernel fared there; `skipped` where the checker could not look."""

    probe: Probe
    status: Status
    reason: str = ""
    skipped: bool = False

    @property
    def right(self) -> bool:
        """Whether all kinds of values were."""
        return self.status is Status.OK


@dataclass
class Trial:
    """Tries points of one kernel, each once, until its time is up."""

    op: Op
    kernel: Kernel
    device: str
    worker: Worker
    deadline: float
    known: dict[Any, Tried] = field(default_factory=dict)

    def of(self, probe: Probe, kinds: tuple[str, ...]) -> Tried | None:
        """How it fared; None when there is no time left."""
        key = (probe.point, kinds)
        if key not in self.known:
            if time.monotonic() > self.deadline:
                return None
            self.known[key] = self._run(probe, kinds)
        return replace(self.known[key], probe=probe)

    def all(self, probes: Iterable[Probe], kinds: tuple[str, ...]) -> list[Tried]:
        """Those for which there was time, and that the checker could look at."""
        return [tried for probe in probes if (tried := self.of(probe, kinds)) is not None and not tried.skipped]

    def _run(self, probe: Probe, kinds: tuple[str, ...]) -> Tried:
        payload = {"op": self.op.name, "kernel": self.kernel.name, "device": self.device, "point": point_payload(probe.point)}
        outcome = self.worker.run(PROBE, {**payload, "edges": kinds}, PROBE_S)
        if outcome.value is None:
            return Tried(probe, outcome.status, outcome.reason, outcome.status is Status.UNSUPPORTED or CHECKER in outcome.reason)
        status, reason = Status(outcome.value["status"]), outcome.value["reason"]
        if astray(reason):
            self.worker.close()
        return Tried(probe, status, reason, status is Status.UNSUPPORTED and REFUSES not in reason)  # no room to check it


def probe_job(payload: dict[str, Any]) -> dict[str, Any]:
    """{op, kernel, device, point, edges} -> the first `CaseResult` that is not ok, else the last; the declared support is not asked."""
    table = registry.current()
    op, kernel = table.op(payload["op"]), table.kernel(payload["op"], payload["kernel"])
    workload, device = op.workload(point_from(payload["point"]), payload["device"]), torch.device(payload["device"])
    built = build_case(kernel, build, Case(workload, "random"), None, ALL)
    if isinstance(built, CaseResult):
        return asdict(built)
    result = None
    for edge in payload["edges"]:
        result = check_workload(op, kernel, built, workload, device=device, edge=edge)
        if not result.ok:
            break
    if result is None:
        raise Unsupported("no kind of values was named.")
    return asdict(result)
