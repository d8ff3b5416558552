"""Declared support against the real one: the kernel is built and checked on both sides of each bound, whatever it declares.

A kernel that refuses (Unsupported, a failed build) can't; one that is wrong, crashes or hangs can't either. Too wide: it
declares what it can't. Too narrow: it can what it does not declare, which may be on purpose, for speed.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch

from kernelyard.errors import Unsupported
from kernelyard.registry import registry
from kernelyard.registry.kernel import Kernel
from kernelyard.registry.op import Op
from kernelyard.registry.spec import Status
from kernelyard.verify.check import Case, build_case
from kernelyard.verify.defences import ALL
from kernelyard.verify.envelope import QUICK, Axis, Probe, axes, base_point, sized
from kernelyard.verify.isolation import Worker
from kernelyard.verify.jobs import build
from kernelyard.verify.journal import point_from, point_payload
from kernelyard.verify.oracle import check_workload
from kernelyard.verify.outcome import CaseResult
from kernelyard.verify.shrink import astray

PROBE = "kernelyard.verify.boundary:probe_job"
PROBE_S, BUDGET_S = 60.0, 300.0
"""Seconds for one point, and for all of one kernel."""
SLOW_PROBES = 1
"""Points on each side of a range where a build costs seconds (torch.compile): the nearest alone."""
CHECKER, REFUSES = "the checker failed", "then refuses"
"""Words by which reasons name the checker's own failure, and a kernel that refuses a workload."""
CAN_NOT = {Status.UNSUPPORTED: "refuses", Status.BUILD_FAILED: "can't be built", Status.WRONG: "wrong", Status.CRASHED: "crashes",
           Status.TIMED_OUT: "hangs"}  # fmt: skip


@dataclass(frozen=True)
class Row:
    """One axis of one kernel. `verdict` is 'exact', 'too wide', 'too narrow' or 'not tried: why'.

    `points` were tried; `example` is the one that decides.
    """

    kernel: str
    axis: str
    declared: str
    real: str
    verdict: str
    points: int = 0
    example: str = ""


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


def boundary(op: Op, kernel: Kernel, device: str, worker: Worker, budget_s: float = BUDGET_S) -> list[Row]:
    """A row for each axis of the kernel's declared support."""
    if not (answer := registry.current().can_run(kernel, device, "check")):
        return [_not_tried(kernel, "all", "", answer.reason)]
    base = base_point(op, kernel, device)
    if base is None:
        return [_not_tried(kernel, "all", "", "no point of the correctness matrix is inside its declared support")]
    slow = registry.current().backend(kernel.backend).slow_builds
    trial = Trial(op, kernel, device, worker, time.monotonic() + budget_s)
    middle = trial.of(Probe("middle", base), QUICK)
    if middle is not None and not middle.right and not middle.skipped:
        return [Row(kernel.name, "all", "", "wrong in the middle of it: `check` has more", "too wide", 1, _example(middle))]
    return [_row(kernel, _nearest(axis) if slow else axis, trial) for axis in axes(op, kernel, device, base)]


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


def _nearest(axis: Axis) -> Axis:
    """Fewer points: of a range the bounds alone, and typical values."""
    if axis.each:
        return replace(axis, edges=("random",))
    return replace(axis, inside=axis.inside[-SLOW_PROBES:], outside=axis.outside[:SLOW_PROBES], edges=("random",))


def _row(kernel: Kernel, axis: Axis, trial: Trial) -> Row:
    inside, outside = trial.all(axis.inside, axis.edges), trial.all(axis.outside, axis.edges)
    points = len(inside) + len(outside)
    if not points:
        why = axis.beyond or ("the time for this kernel was up" if time.monotonic() > trial.deadline else "no point could be checked here")
        return _not_tried(kernel, axis.name, axis.declared, why)
    if bad := next((tried for tried in inside if not tried.right), None):
        real = _real_values(inside + outside) if axis.each else _limit(axis, inside, trial)
        return Row(kernel.name, axis.name, axis.declared, real, "too wide", points, _example(bad))
    right = [tried for tried in outside if tried.right]
    if right and (axis.each or len(right) == len(outside)):
        real = _real_values(inside + outside) if axis.each else f"right at {', '.join(tried.probe.value for tried in right)} too"
        return Row(kernel.name, axis.name, axis.declared, real, "too narrow", points, f"{len(right)} outside, {_example(right[-1])}")
    if not outside and axis.beyond:
        return Row(kernel.name, axis.name, axis.declared, "right inside", f"not tried: {axis.beyond}", points)
    beyond = next((_example(tried) for tried in outside if not tried.right), "")
    return Row(kernel.name, axis.name, axis.declared, axis.declared if not axis.each else _real_values(inside), "exact", points, beyond)


def _not_tried(kernel: Kernel, axis: str, declared: str, why: str) -> Row:
    return Row(kernel.name, axis, declared, "", f"not tried: {why}")


def _real_values(tried: list[Tried]) -> str:
    return ", ".join(one.probe.value for one in tried if one.right) or "none"


def _limit(axis: Axis, inside: list[Tried], trial: Trial) -> str:
    """From where on sizes go wrong, by halving between a right one and a wrong one."""
    wrong = next(one for one in inside if not one.right)
    low = max((int(one.probe.value) for one in inside if one.right and int(one.probe.value) < int(wrong.probe.value)), default=None)
    if low is None:
        right = [one.probe.value for one in inside if one.right]
        return f"wrong at {wrong.probe.value}" + (f", right from {right[0]} on" if right else "")
    high, i = int(wrong.probe.value), trial.op.dims.index(axis.name)
    while high - low > 1:
        middle = (low + high) // 2
        tried = trial.of(Probe(str(middle), sized(wrong.probe.point, i, middle)), axis.edges)
        if tried is None:
            return f"right at {low}, wrong at {high}"
        low, high = (middle, high) if tried.right else (low, middle)
    return f"right to {low}, wrong from {high}"


def _example(tried: Tried) -> str:
    point = tried.probe.point
    words = f"{'x'.join(map(str, point.dims))} {point.dtype}" + (f" {point.layout}" if point.layout != "contiguous" else "")
    return f"{words}: {'right' if tried.right else CAN_NOT[tried.status]}" + (f": {tried.reason}" if tried.reason else "")
