"""When two choices count as the same."""

from __future__ import annotations

from typing import Any

import pytest


def chosen(kernel: str, low: float, high: float) -> dict[str, Any]:
    return {"choice": {"kernel": kernel, "config": {}}, "device_time_us": {"median": (low + high) / 2, "low": low, "high": high}}


def test_the_same_choice_or_intervals_that_meet_are_no_difference() -> None:
    differences = pytest.importorskip("benchmarks.beyond_one_process").differences
    assert differences(chosen("a", 1, 2), chosen("a", 5, 6)) == []
    assert differences(chosen("a", 1, 2), chosen("b", 1.9, 3)) == []
    (told,) = differences(chosen("a", 1, 2), chosen("b", 2.1, 3))
    assert "another choice: a" in told
