"""Measurements as a series: a kernel against itself many times over, and two runs of the same bench, row by row."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from kernelyard.errors import UsageError
from kernelyard.measure.stats import Interval

Row = Mapping[str, Any]
"""A row of a stored experiment's results.json: op, workload, kernel, config, device_time_us and more."""


@dataclass(frozen=True)
class Series:
    """A/A: `holding` of `runs` intervals contain 1.0. Widths are shares; a run without a ratio holds nothing.

    `autocorrelation` is that of neighbouring ratios (lag 1): near 0 they are independent, near 1 something drifts from
    run to run that interleaving does not even out. None where there are fewer than three, or all are equal.
    """

    runs: int
    holding: int
    median_ratio: float | None
    median_width: float | None
    widest: float | None
    autocorrelation: float | None

    @property
    def share(self) -> float:
        """The share of runs whose interval contains 1.0."""
        return self.holding / self.runs


@dataclass(frozen=True)
class Outside:
    """A row that was not found again. `change` is the second time over the first, less 1; None where one is missing or 0."""

    op: str
    workload: str
    kernel: str
    first_us: float | None
    second_us: float | None
    change: float | None
    reason: str


def against_itself(ratios: Sequence[Interval | None]) -> Series:
    """What the ratios of a kernel to itself say together, in order of time; None is a run without a ratio."""
    if not ratios:
        raise UsageError("a series of no runs says nothing.", do="Repeat at least once.")
    found = [ratio for ratio in ratios if ratio is not None]
    medians, widths = [ratio.median for ratio in found], [ratio.spread for ratio in found]
    return Series(
        runs=len(ratios),
        holding=sum(ratio.contains(1.0) for ratio in found),
        median_ratio=statistics.median(medians) if found else None,
        median_width=statistics.median(widths) if found else None,
        widest=max(widths, default=None),
        autocorrelation=autocorrelation(medians),
    )


def autocorrelation(values: Sequence[float]) -> float | None:
    """Of each value with the next one."""
    if len(values) < 3:
        return None
    mean = statistics.fmean(values)
    off = [value - mean for value in values]
    total = sum(value * value for value in off)
    return sum(a * b for a, b in pairwise(off)) / total if total else None


def share_within(first_rows: Sequence[Row], second_rows: Sequence[Row], tolerance: float = 0.03) -> tuple[float, list[Outside]]:
    """The share of rows whose device time was found again within plus or minus `tolerance`, and those that were not.

    Rows are matched by op, workload and kernel. A row that only one side has counts as not found again.
    """
    first, second = _by_key(first_rows), _by_key(second_rows)
    keys = list(dict.fromkeys((*first, *second)))
    if not keys:
        raise UsageError("neither run has a row.", do="Compare results.json of two runs of the same bench.")
    outside = [found for key in keys if (found := _outside(key, first.get(key), second.get(key), tolerance)) is not None]
    return 1 - len(outside) / len(keys), outside


def _by_key(rows: Sequence[Row]) -> dict[tuple[str, str, str], Row]:
    found: dict[tuple[str, str, str], Row] = {}
    for row in rows:
        key = (row["op"], row["workload"], row["kernel"])
        if key in found:
            raise UsageError(f"{' '.join(key)} stands in one run twice.", do="Compare runs of one bench each.")
        found[key] = row
    return found


def _outside(key: tuple[str, str, str], first: Row | None, second: Row | None, tolerance: float) -> Outside | None:
    before, after = _time(first), _time(second)
    if first is None or second is None:
        return Outside(*key, before, after, None, "only one run has it")
    if first["config"] != second["config"]:
        return Outside(*key, before, after, None, "it ran in another config")
    if not before or not after:
        return None if before == after else Outside(*key, before, after, None, "only one run could time it")
    change = after / before - 1
    return Outside(*key, before, after, change, f"{change:+.1%}") if abs(change) > tolerance else None


def _time(row: Row | None) -> float | None:
    us: float | None = None if row is None else row["device_time_us"]
    return us
