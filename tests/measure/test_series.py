"""A/A as a series, and two runs of one bench compared row by row."""

from __future__ import annotations

import random
from typing import Any

import pytest

from kernelyard.errors import UsageError
from kernelyard.measure.series import against_itself, autocorrelation, share_within
from kernelyard.measure.stats import Interval


def test_intervals_that_hold_one_are_counted_and_a_run_without_a_ratio_holds_nothing() -> None:
    found = against_itself([Interval(1.0, 0.99, 1.01), Interval(1.02, 1.01, 1.03), Interval(0.98, 0.94, 1.02), None])
    assert (found.runs, found.holding, found.share, found.median_ratio) == (4, 2, 0.5, 1.0)
    assert found.median_width == pytest.approx(0.02) and found.widest == pytest.approx(0.08 / 0.98)


def test_no_ratio_at_all_and_no_run_at_all() -> None:
    found = against_itself([None, None])
    assert (found.share, found.median_ratio, found.median_width, found.autocorrelation) == (0.0, None, None, None)
    with pytest.raises(UsageError, match="no runs"):
        against_itself([])


def test_drift_from_run_to_run_shows_as_autocorrelation() -> None:
    rng = random.Random(1)
    independent = autocorrelation([rng.gauss(1, 0.01) for _ in range(400)])
    drifting = autocorrelation([1 + step / 400 for step in range(400)])
    assert independent is not None and abs(independent) < 0.15
    assert drifting is not None and drifting > 0.95
    assert autocorrelation([1.0, 1.0, 1.0]) is None and autocorrelation([1.0, 2.0]) is None


def row(kernel: str, us: float | None, **other: Any) -> dict[str, Any]:
    return {"op": "rmsnorm", "workload": "16x4096 bf16", "kernel": kernel, "config": {}, "device_time_us": us, **other}


def test_rows_within_the_tolerance_are_found_again_whatever_their_order() -> None:
    first = [row("a", 100.0), row("b", 100.0), row("c", 100.0), row("d", 100.0)]
    second = [row("d", 96.0), row("c", 97.5), row("b", 102.9), row("a", 100.0)]
    share, outside = share_within(first, second)
    assert share == 0.75 and [(one.kernel, one.reason) for one in outside] == [("d", "-4.0%")]
    assert share_within(first, second, tolerance=0.05) == (1.0, [])


def test_a_row_that_one_run_lacks_or_could_not_time_is_not_found_again() -> None:
    share, outside = share_within([row("a", 1.0), row("b", 0.0), row("c", 0.0)], [row("b", 0.0), row("c", 2.0), row("d", 1.0)])
    assert share == 0.25
    assert {one.kernel: one.reason for one in outside} == {
        "a": "only one run has it", "c": "only one run could time it", "d": "only one run has it",
    }  # fmt: skip


def test_another_config_is_another_kernel() -> None:
    share, outside = share_within([row("a", 1.0, config={"warps": 4})], [row("a", 1.0, config={"warps": 8})])
    assert share == 0.0 and outside[0].reason == "it ran in another config"


def test_what_can_not_be_compared_is_refused() -> None:
    with pytest.raises(UsageError, match="neither run has a row"):
        share_within([], [])
    with pytest.raises(UsageError, match="twice"):
        share_within([row("a", 1.0), row("a", 2.0)], [row("a", 1.0)])
