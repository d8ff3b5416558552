"""Events of a tuning run, for whoever shows them: the tuner prints nothing."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from kernelyard.registry.spec import Config, Status, Workload

if TYPE_CHECKING:
    from kernelyard.tuner.bench import Result

Stage = Literal["waiting", "cached", "trying", "trial", "finals", "stopping", "done"]


@dataclass(frozen=True)
class Progress:
    """One event. `done` of `total` trials over all workloads; `best_us` is the best so far on this workload.

    'waiting': another process is tuning this workload. 'cached': answered by a stored choice. 'trying': a trial begins. 'trial': one
    ended, with `status`, `reason`, the tail of its `log`, `time_us`. 'finals': finals are prepared and timed. 'stopping': interrupted,
    the best so far meets plain torch. 'done': this workload has its choice. `counts` are this workload's by status, with those of earlier
    runs and what constraints forbid; `spent` are seconds of this run by build, check and time.
    """

    stage: Stage
    op: str
    workload: str
    kernel: str = ""
    config: Config = field(default_factory=dict)
    done: int = 0
    total: int = 0
    best_us: float | None = None
    best_kernel: str = ""
    eta_s: float | None = None
    counts: Mapping[str, int] = field(default_factory=dict)
    message: str = ""
    status: str = ""
    reason: str = ""
    log: str = ""
    time_us: float | None = None
    spent: Mapping[str, float] = field(default_factory=dict)


FINALS_S = 15.0
"""A first guess for finals: nearly all of it is torch.compile."""

Listener = Callable[[Progress], None]


def nobody(event: Progress) -> None:
    """A listener that does not listen."""


class Tracker:
    """Counts trials over the whole run and fills in what every event has. Several threads may tell; the listener hears one at a time."""

    def __init__(self, op: str, total: int, workloads: int, listener: Listener) -> None:
        self._telling = threading.RLock()
        self._op, self.total, self._workloads, self._listener = op, total, workloads, listener
        self._done, self._measured, self._start, self._first_end = 0, 0, time.monotonic(), 0.0
        self._finals_begin, self._finals_s, self._finals_played = 0.0, 0.0, 0
        self._workload, self._counts = "", Counter[str]()
        self._best_us: float | None = None
        self._best_kernel = ""
        self._spent: Mapping[str, float] = {}

    def watch(self, spent: Mapping[str, float]) -> None:
        """Where the seconds of building, checking and timing are counted."""
        self._spent = spent

    def begin(self, workload: Workload) -> None:
        """The next workload."""
        self._workload, self._counts, self._best_us, self._best_kernel = workload.label(), Counter(), None, ""

    def ended(self, kernel: str, config: Config, result: Result, *, resumed: bool = False) -> None:
        """A trial ended now, or (resumed) was found finished. What constraints forbid takes none of the budget."""
        time_us = result.timing.median_us if result.timing is not None else None
        with self._telling:
            self._count(kernel, result.status, time_us, resumed)
            if not resumed:
                self._send("trial", kernel, config, status=str(result.status), reason=result.reason, log=result.log, time_us=time_us)

    def _count(self, kernel: str, status: Status, time_us: float | None, resumed: bool) -> None:
        tried = status is not Status.PRUNED
        self._done += tried
        if tried and not resumed:
            self._measured += 1
            self._first_end = self._first_end or time.monotonic()
        self._counts[status] += 1
        if time_us is not None and (self._best_us is None or time_us < self._best_us):
            self._best_us, self._best_kernel = time_us, kernel

    def unneeded(self, trials: int) -> None:
        """A search ended with so many of its trials unused."""
        self.total -= trials

    def answered(self, trials: int) -> None:
        """The workload was answered by the store after all; its planned trials will not be needed."""
        self.unneeded(trials)
        self._workloads -= 1
        self.say("cached")

    def finals(self, stage: Stage = "finals") -> None:
        """Finals of this workload begin; short ones where it was interrupted ('stopping')."""
        self._finals_begin = time.monotonic()
        self.say(stage)

    def chosen(self, kernel: str, config: Config) -> None:
        """This workload has its choice."""
        self._finals_s += time.monotonic() - self._finals_begin
        self._finals_played += 1
        self.say("done", kernel, config)

    def so_far(self) -> str:
        """For whoever stops the run."""
        return f"All {self._done} finished trials are kept."

    def say(self, stage: Stage, kernel: str = "", config: Config | None = None, message: str = "") -> None:
        """Send one event."""
        self._send(stage, kernel, config, message=message)

    def _send(self, stage: Stage, kernel: str, config: Config | None, **more: Any) -> None:
        with self._telling:
            self._listener(
                Progress(stage, self._op, self._workload, kernel, dict(config or {}), self._done, max(self.total, self._done),
                         self._best_us, self._best_kernel, self._eta_s(), dict(self._counts), spent=dict(self._spent), **more)
            )  # fmt: skip

    def _eta_s(self) -> float | None:
        """From the mean trial and the mean finals so far; unknown before the first trial, which has the start of the worker in it."""
        if not self._measured:
            return None
        since, trials = (self._first_end, self._measured - 1) if self._measured > 1 else (self._start, 1)
        trials_s = time.monotonic() - since - self._finals_s
        one_finals_s = self._finals_s / self._finals_played if self._finals_played else FINALS_S
        finals_left = (self._workloads - self._finals_played) * one_finals_s
        return trials_s / trials * max(self.total - self._done, 0) + finals_left
