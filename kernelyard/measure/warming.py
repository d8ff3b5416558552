"""Before the first sample: how many calls make one, until when a candidate warms up, and when the device stands still."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from kernelyard.measure import conditions
from kernelyard.measure.clocks import Stopwatch
from kernelyard.measure.state import Guard, Seen

if TYPE_CHECKING:
    from kernelyard.measure.interleave import Plan

STABLE = 1.05
STEPS = 20
"""A sample lasts at least so many steps of its clock, so that one step is at most 5% of it; for a clock of 15 ms that is 0.3 s."""

LONGEST_S = 0.5
"""A reading that took so long is long enough, whatever its clock says: that may stand still."""

SETTLE_LAP_S = 0.2


def calibrate(watch: Stopwatch, sample_us: float) -> int:
    """Calls for a sample of at least `sample_us` and STEPS steps of the clock: at least one grain, at most what the stopwatch allows."""
    calls, sample_us = watch.grain, max(sample_us, min(STEPS * watch.resolution_us, LONGEST_S * 1e6))
    while calls < watch.most_calls:
        start = time.monotonic()
        elapsed = watch.read(calls)
        if time.monotonic() - start >= LONGEST_S:
            break
        if elapsed >= sample_us:  # a neighbour may have stretched one reading; the least of three is the kernel's
            elapsed = min(elapsed, watch.read(calls), watch.read(calls))
        if elapsed >= sample_us:
            break
        growth = min(max(1.2 * sample_us / elapsed, 2.0), 16.0) if elapsed else 16.0
        calls = min(whole(watch, math.ceil(calls * growth)), whole(watch, watch.most_calls))
    return calls


def occupy(watch: Stopwatch, calls: int, seconds: float) -> None:
    """Keep the device at this candidate's work for so long, untimed."""
    start = time.monotonic()
    while time.monotonic() - start < seconds:
        watch.run(calls)


def whole(watch: Stopwatch, calls: int) -> int:
    """So many calls, in whole grains."""
    return max(math.ceil(calls / watch.grain), 1) * watch.grain


def warm_up(watch: Stopwatch, plan: Plan) -> bool:
    """Run for the time asked and until four readings in a row agree within 5%; False if they never do. The first call counts nowhere."""
    start = time.monotonic()
    recent: list[float] = []
    calls = calibrate(watch, plan.sample_us)
    while True:
        recent = [*recent[-3:], watch.read(calls)]
        passed = time.monotonic() - start
        stable = len(recent) == 4 and max(recent) <= STABLE * min(recent)
        if passed >= plan.warm_up_s and stable:
            return True
        if passed >= 5 * plan.warm_up_s and len(recent) == 4:
            return False


def settle(watches: Mapping[str, Stopwatch], calls: Mapping[str, int], plan: Plan, guard: Guard, seen: Seen) -> str:
    """After the warm-up, laps of all candidates while the device's clock and temperature move; '' or what still moved at the end."""
    start = time.monotonic()
    while moved := conditions.moving(seen.states):
        if time.monotonic() - start >= plan.settle_s:
            return moved
        judge, lap = guard(), time.monotonic()
        while time.monotonic() - lap < SETTLE_LAP_S:
            for name, watch in watches.items():
                watch.read(calls[name])
        seen = judge()
    return ""
