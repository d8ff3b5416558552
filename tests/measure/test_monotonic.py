"""The CPU's clock, calibrated: fine, coarse and standing still."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import pytest

from kernelyard.measure.monotonic import Clock, calibrate_clock, clock


def ticking(cost_ns: int, step_ns: int, start: int = 0) -> Callable[[], int]:
    """A clock on which a reading takes so long and that shows whole steps only."""
    now = itertools.count(start, cost_ns)
    return lambda: next(now) // step_ns * step_ns


@pytest.mark.parametrize(("cost_ns", "step_ns"), [(50, 1), (60, 100), (40, 1_000), (30, 15_625_000)])
def test_step_and_cost_are_found(cost_ns: int, step_ns: int) -> None:
    found = calibrate_clock(ticking(cost_ns, step_ns))
    assert found.step_us == pytest.approx(max(step_ns, cost_ns) / 1e3, rel=0.01)
    assert found.resolution_us >= found.step_us


def test_a_reading_that_was_interrupted_is_not_the_clocks_cost() -> None:
    times = itertools.accumulate(itertools.chain([0, *[50] * 150, 10**7], itertools.repeat(50)))
    assert calibrate_clock(lambda: next(times)).cost_us == pytest.approx(0.05)


def test_a_clock_that_stands_still_tells_nothing_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernelyard.measure.monotonic.MOST_READS", 1000)
    assert calibrate_clock(lambda: 7) == Clock(math.inf, math.inf)


def test_this_machines_clock_is_measured() -> None:
    assert 0 < clock().resolution_us < math.inf
