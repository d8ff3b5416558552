"""Declared support against the real one: the kernel is built and checked on both sides of each bound, whatever it declares.

A kernel that refuses (Unsupported, a failed build) can't; one that is wrong, crashes or hangs can't either. Too wide: it
declares what it can't. Too narrow: it can what it does not declare, which may be on purpose, for speed.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from kernelyard.registry import registry
from kernelyard.registry.kernel import Kernel
from kernelyard.registry.op import Op
from kernelyard.registry.spec import Status
from kernelyard.verify.envelope import QUICK, Axis, Probe, axes, base_point, sized
from kernelyard.verify.isolation import Worker
from kernelyard.verify.probing import Trial, Tried

BUDGET_S = 300.0
"""Seconds for all points of one kernel."""
SLOW_PROBES = 1
"""Points on each side of a range where a build costs seconds (torch.compile): the nearest alone."""
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
