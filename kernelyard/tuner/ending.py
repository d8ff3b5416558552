"""When a search ends before its trials are used up: time, or no gain beyond noise. The first that holds ends it.

Patience rather than Optuna's terminator: that one fits a Gaussian process (scipy, seconds), and takes no interval of a single measurement.
A trial improves on the best when its median is below the 95% interval of the best; the best that is compared with stays until then, so
that many small gains add up to one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kernelyard.errors import UsageError
from kernelyard.registry.spec import Timing

if TYPE_CHECKING:
    from kernelyard.tuner.bench import Finished

Stop = Callable[[Sequence["Finished"]], str]
"""Why the search is over, after these trials; empty while it is not."""


@dataclass(frozen=True)
class Ending:
    """Limits of one kernel's search on one workload, beside its trials."""

    minutes: float | None = None
    patience: int | None = None

    def __post_init__(self) -> None:
        for name, value in (("minutes", self.minutes), ("trials of patience", self.patience)):
            if value is not None and not value > 0:
                raise UsageError(f"{value} {name} were asked for.", do="Ask for more than 0.")

    def started(self) -> Stop:
        """The rule for a search that begins now."""
        began = time.monotonic()

        def stop(finished: Sequence[Finished]) -> str:
            if self.patience is not None and without_gain(finished) >= self.patience:
                return f"no gain beyond noise in {self.patience} trials"
            if self.minutes is not None and time.monotonic() - began >= self.minutes * 60:
                return f"{self.minutes:g} minutes are over"
            return ""

        return stop


def without_gain(finished: Sequence[Finished]) -> int:
    """Trials since the last that improved on the best; failed ones count, configs that constraints forbid do not."""
    best: Timing | None = None
    since = 0
    for one in finished:
        timing = one.result.timing
        if timing is not None and (best is None or timing.median_us < best.low_us):
            best, since = timing, 0
        else:
            since += one.tried
    return since
