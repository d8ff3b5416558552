"""Events of a tuning run, for whoever shows them: the tuner prints nothing."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from kernelyard.registry.spec import Config, Status, Workload

Stage = Literal["waiting", "cached", "trial", "finals", "done"]


@dataclass(frozen=True)
class Progress:
    """One event. `done` of `total` trials over all workloads; `best_us` is the best so far on this workload.

    'waiting': another process is tuning this workload. 'cached': answered by a stored choice. 'trial': one ended,
    `counts` are this workload's. 'finals': finals are prepared and timed. 'done': this workload has its choice.
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


FINALS_S = 15.0
"""A first guess for finals: nearly all of it is torch.compile."""

Listener = Callable[[Progress], None]


def nobody(event: Progress) -> None:
    """A listener that does not listen."""


class Tracker:
    """Counts trials over the whole run and fills in what every event has."""

    def __init__(self, op: str, total: int, workloads: int, listener: Listener) -> None:
        self._op, self.total, self._workloads, self._listener = op, total, workloads, listener
        self._done, self._measured, self._start = 0, 0, time.monotonic()
        self._finals_begin, self._finals_s, self._finals_played = 0.0, 0.0, 0
        self._workload, self._counts = "", Counter[str]()
        self._best_us: float | None = None
        self._best_kernel = ""

    def begin(self, workload: Workload) -> None:
        """The next workload."""
        self._workload, self._counts, self._best_us, self._best_kernel = workload.label(), Counter(), None, ""

    def ended(self, kernel: str, config: Config, status: Status, time_us: float | None, *, resumed: bool = False) -> None:
        """A trial ended now, or (resumed) was found finished."""
        self._done += 1
        self._measured += not resumed
        self._counts[status] += 1
        if time_us is not None and (self._best_us is None or time_us < self._best_us):
            self._best_us, self._best_kernel = time_us, kernel
        if not resumed:
            self.say("trial", kernel, config)

    def answered(self, trials: int) -> None:
        """The workload was answered by the store after all; its planned trials will not be needed."""
        self.total -= trials
        self._workloads -= 1
        self.say("cached")

    def finals(self) -> None:
        """Finals of this workload begin."""
        self._finals_begin = time.monotonic()
        self.say("finals")

    def chosen(self, kernel: str, config: Config) -> None:
        """This workload has its choice."""
        self._finals_s += time.monotonic() - self._finals_begin
        self._finals_played += 1
        self.say("done", kernel, config)

    def so_far(self) -> str:
        """One sentence for whoever stops the run."""
        best = f" Best so far on {self._workload}: {self._best_kernel}, {self._best_us:.4g} us." if self._best_us is not None else ""
        return f"All {self._done} finished trials are kept.{best}"

    def say(self, stage: Stage, kernel: str = "", config: Config | None = None, message: str = "") -> None:
        """Send one event."""
        self._listener(
            Progress(stage, self._op, self._workload, kernel, dict(config or {}), self._done, max(self.total, self._done), self._best_us,
                     self._best_kernel, self._eta_s(), dict(self._counts), message)
        )  # fmt: skip

    def _eta_s(self) -> float | None:
        """From the mean trial and the mean finals so far; unknown before the first trial."""
        if not self._measured:
            return None
        trials_s = time.monotonic() - self._start - self._finals_s
        one_finals_s = self._finals_s / self._finals_played if self._finals_played else FINALS_S
        finals_left = (self._workloads - self._finals_played) * one_finals_s
        return trials_s / self._measured * max(self.total - self._done, 0) + finals_left
