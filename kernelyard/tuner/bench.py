"""A worker process with kernels built, checked and timed in it, seen from the parent: a crash costs one item, never the run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from kernelyard.errors import MeasurementFailed
from kernelyard.measure.stats import Interval
from kernelyard.registry.spec import Config, Status, Timing, Workload, config_key, digest
from kernelyard.tuner.encoding import encode
from kernelyard.tuner.limits import Limits, Options
from kernelyard.verify.isolation import Outcome, Worker
from kernelyard.verify.machine import OUT_OF_MEMORY

LOG_TAIL = 2000
"""Characters of a trial's output that are kept: a compiler's first error or a Python stack fits."""

STEPS = {"build_job": "build", "check_job": "check", "time_job": "time"}
"""What a trial does, by its job; what else a worker does is no trial's."""


@dataclass(frozen=True)
class Item:
    """A kernel with a config on a workload. `patient` ones may build in their first call, as torch.compile does."""

    kernel: str
    config: Config
    workload: Workload
    patient: bool = False

    @property
    def id(self) -> str:
        """The same for equal items, in every process."""
        return digest([self.kernel, config_key(self.config), self.workload.key()])


@dataclass(frozen=True)
class Result:
    """What became of an item. `timing` is there only where the status is ok and a time was asked for."""

    status: Status
    reason: str = ""
    log: str = ""
    timing: Timing | None = None
    build_s: float | None = None


@dataclass(frozen=True)
class Finished:
    """One trial that ended, now or in an earlier run."""

    config: Config
    result: Result

    @property
    def tried(self) -> bool:
        """Whether it took a trial: what constraints forbid takes none."""
        return self.result.status is not Status.PRUNED


@dataclass(frozen=True)
class Times:
    """An interleaved measurement: timings and samples (microseconds, by batch) by item id.

    `impossible` says of which items the time is below what the device can do: they did not do the work. `copy_us` is the
    time of a copy of the workload's bytes, where it ran among them. `energy` holds `joules` of a call by item id, or why there
    are none in `absent`, where it was asked for.
    """

    protocol: str
    timings: Mapping[str, Timing]
    samples: Mapping[str, list[list[float]]]
    notes: Mapping[str, str]
    impossible: Mapping[str, str] = field(default_factory=dict)
    copy_us: float | None = None
    energy: Mapping[str, Any] = field(default_factory=dict)


class Bench:
    """Builds, checks and times items in a worker. Knows what is built in the worker that lives now, and rebuilds after a loss."""

    def __init__(self, worker: Worker, limits: Limits) -> None:
        self._worker, self._limits = worker, limits
        self._built: dict[str, float] = {}
        self._resources: dict[str, dict[str, int]] = {}
        self._pid: int | None = None
        self._ceilings_known = False
        self.spent = dict.fromkeys(STEPS.values(), 0.0)
        """Seconds of building, checking and timing, of all items so far."""

    def prepare(self, item: Item) -> Result:
        """Build, then check on the item's workload."""
        built = self.build(item)
        if built.status is not Status.OK:
            return built
        limit = self._limits.compile_s if item.patient else self._limits.check_s
        outcome = self._run("check_job", {"id": item.id}, limit)
        if outcome.status is not Status.OK or outcome.value is None:
            return _failed(outcome, "while checking: ")
        status, reason = Status(outcome.value["status"]), str(outcome.value["reason"])
        if _poisons(item, status, reason):
            self._worker.close()
        return replace(built, status=status, reason=reason, log=_tail(outcome.log))

    def trial(self, item: Item, options: Options) -> Result:
        """Build, check, time; a wrong item is never timed, an impossible time is wrong. Built items of earlier trials are dropped."""
        result = self.prepare(item)
        if result.status is not Status.OK:
            return result
        timed = self.time([item], options)
        if isinstance(timed, Result):
            return replace(timed, build_s=result.build_s)
        self.keep([])
        if reason := timed.impossible.get(item.id):
            return replace(result, status=Status.WRONG, reason=reason)
        return replace(result, timing=timed.timings[item.id])

    def time(self, items: Sequence[Item], options: Options, mode: str = "device", ceiling: bool = False) -> Times | Result:
        """Time items of one workload against each other, with `ceiling` a copy too; a Result says what went wrong for all."""
        for item in items:
            built = self.build(item)
            if built.status is not Status.OK:
                return built
        device = items[0].workload.device
        held = self._run("hold_job", {"device": device}, self._limits.device_wait_s)
        if held.status is not Status.OK:
            return _failed(held)
        if mode == "device" and not self._ceilings_known:  # first of all: they must not count as a kernel's hang
            measured = self._run("ceilings_job", {"device": device}, self._limits.ceilings_s)
            if measured.status is not Status.OK:
                return _failed(measured)
            self._ceilings_known = True
        payload = {"ids": [item.id for item in items], "device": device, "mode": mode, "options": dict(options), "ceiling": ceiling}
        outcome = self._run("time_job", payload, self._limits.time_s * max(1, len(items) // 2))
        if outcome.status is not Status.OK or outcome.value is None:
            return _failed(outcome, "while timing: ")
        value = outcome.value
        timings = {name: Timing(**timing) for name, timing in value["timings"].items()}
        parts = (value[name] for name in ("samples", "notes", "impossible", "copy_us", "energy"))
        return Times(value["protocol"], timings, *parts)

    def against_itself(self, item: Item, options: Options) -> Interval | Result | None:
        """The ratio of a built item to itself in one measurement; None where its time can't be told from nothing."""
        built = self.build(item)
        if built.status is not Status.OK:
            return built
        payload = {"id": item.id, "device": item.workload.device, "options": dict(options)}
        outcome = self._run("itself_job", payload, self._limits.time_s + self._limits.device_wait_s)
        if outcome.status is not Status.OK or outcome.value is None:
            return _failed(outcome)
        ratio = outcome.value["ratio"]
        return Interval(**ratio) if ratio else None

    def resources(self, item: Item) -> dict[str, int]:
        """Registers, spills, shared bytes of an item that was built, as far as its compiler told."""
        return self._resources.get(item.id, {})

    def facts(self, device: str) -> dict[str, Any]:
        """What explaining a time needs to know of the device, as `facts_job` tells it; raises MeasurementFailed."""
        outcome = self._run("facts_job", {"device": device}, self._limits.ceilings_s + self._limits.device_wait_s)
        if outcome.status is not Status.OK or outcome.value is None:
            raise MeasurementFailed(f"the facts of {device} can't be told: {outcome.reason}.")
        return outcome.value

    def keep(self, items: Sequence[Item]) -> None:
        """Drop what else is built, so that memory does not grow with the search."""
        ids = [item.id for item in items]
        if set(self._here()) - set(ids):
            self._run("forget_job", {"keep": ids}, self._limits.check_s)
            self._built = {name: seconds for name, seconds in self._built.items() if name in ids}

    def build(self, item: Item) -> Result:
        """Build, unless the worker that lives now has it."""
        if item.id in self._here():
            return Result(Status.OK, build_s=self._built[item.id])
        names = {"id": item.id, "op": item.workload.op, "kernel": item.kernel}
        payload = {**names, "config": dict(item.config), "workload": encode(item.workload)}
        outcome = self._run("build_job", payload, self._limits.compile_s if item.patient else self._limits.build_s)
        if outcome.status is not Status.OK or outcome.value is None:
            return _failed(outcome, "while building: ")
        self._here()
        self._built[item.id], self._resources[item.id] = float(outcome.value["build_s"]), outcome.value["resources"]
        return Result(Status.OK, build_s=self._built[item.id])

    def _here(self) -> dict[str, float]:
        """What is built in the worker of this moment; nothing if that is another one than before."""
        if self._worker.pid is None or self._worker.pid != self._pid:
            self._built, self._pid = {}, self._worker.pid
        return self._built

    def _run(self, job: str, payload: dict[str, Any], limit_s: float) -> Outcome:
        outcome = self._worker.run(f"kernelyard.tuner.jobs:{job}", payload, limit_s)
        if job in STEPS:
            self.spent[STEPS[job]] += outcome.seconds
        return outcome


def _poisons(item: Item, status: Status, reason: str) -> bool:
    """Whether the process it ran in can't be trusted any more: memory written astray or used up, or a CUDA context after an error.

    Not after every wrong result: a new worker costs 2 s of importing torch, and most wrong configs are only wrong.
    """
    return "out of bounds" in reason or reason.startswith(OUT_OF_MEMORY) or (status is Status.CRASHED and item.workload.device == "cuda")


def _failed(outcome: Outcome, step: str = "") -> Result:
    """`step` says what it was at when it died or hung; an error has words of its own."""
    status = outcome.status if outcome.status is not Status.OK else Status.CRASHED
    dead = status in (Status.CRASHED, Status.TIMED_OUT)
    return Result(status, f"{step if dead else ''}{outcome.reason}", _tail(outcome.log))


def _tail(log: str) -> str:
    return log[-LOG_TAIL:]
