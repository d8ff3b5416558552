"""What the log of a device's lock and four reports must show."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.four_tuners import disagreements, overlaps
from kernelyard.measure.device import Holder


def test_timings_one_after_another_by_two_processes_pass() -> None:
    assert overlaps([Holder(1, 0.0, 1.0), Holder(2, 1.0, 2.0), Holder(1, 2.5, 3.0)]) == []


@pytest.mark.parametrize(
    "held, told",
    [
        ([Holder(1, 0.0, 1.1), Holder(2, 1.0, 2.0)], "processes 1 and 2 timed together for 0.1"),
        ([Holder(1, 0.0, None), Holder(2, 1.0, 2.0)], "process 1 never said"),
        ([Holder(1, 0.0, 1.0)], "this shows nothing"),
    ],
)
def test_a_log_that_proves_nothing_of_the_sort_is_told(held: list[Holder], told: str) -> None:
    (problem,) = overlaps(held)
    assert problem.startswith(told) or problem.endswith(told)


def report(kernel: str, run: str) -> dict[str, Any]:
    return {"workloads": [{"workload": {"label": "1x512 fp32"}, "choice": {"kernel": kernel, "config": {}}, "run_id": run}]}


def test_reports_agree_only_where_choice_and_search_are_the_same() -> None:
    assert disagreements([report("a", "run"), report("a", "run")]) == []
    assert "2 different" in disagreements([report("a", "run"), report("b", "run")])[0]
    assert "2 different" in disagreements([report("a", "run"), report("a", "another")])[0]
    assert "1 of 2" in disagreements([report("a", "run"), {"workloads": []}])[0]
