"""What Nsight Compute prints with --csv: the raw page (a row a launch) and the default one (a row a metric), as numbers.

The table lies among the lines of the program under it and of ncu itself (==PROF==, ==WARNING==). The raw page has the units in
a row of their own under the header. Values may have thousands separators, and durations any unit of time.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Mapping, Sequence

MICROSECONDS: Mapping[str, float] = {
    "ns": 1e-3, "nsecond": 1e-3, "us": 1.0, "usecond": 1.0, "ms": 1e3, "msecond": 1e3, "s": 1e6, "second": 1e6,
}  # fmt: skip
"""Of one unit of time, as versions of ncu spell them."""

Launch = Mapping[str, float]
"""Metrics of one kernel's launch by name, durations in microseconds; a metric that ncu could not read is absent."""


def parse(text: str) -> list[Launch]:
    """The launches in order; none where the text has no table. A metric in an unknown unit of time is left out."""
    lines = [line for line in text.splitlines() if line.lstrip().startswith('"')]
    rows = [row for row in csv.reader(lines, skipinitialspace=True) if row]
    start = next((index for index, row in enumerate(rows) if row[0] == "ID"), None)
    if start is None:
        return []
    header, body = rows[start], [row for row in rows[start + 1 :] if len(row) == len(rows[start]) and row != rows[start]]
    return _long(header, body) if "Metric Name" in header else _wide(header, body)


def _long(header: Sequence[str], body: Iterable[Sequence[str]]) -> list[Launch]:
    """A row a metric; rows of one ID are one launch."""
    launches: dict[str, dict[str, float]] = {}
    for row in (dict(zip(header, cells, strict=True)) for cells in body):
        if not row["ID"]:
            continue
        launch = launches.setdefault(row["ID"], {})
        _put(launch, row["Metric Name"], row["Metric Unit"], row["Metric Value"])
    return list(launches.values())


def _wide(header: Sequence[str], body: Iterable[Sequence[str]]) -> list[Launch]:
    """A row a launch, after one without an ID that has the units."""
    units: Sequence[str] = [""] * len(header)
    launches: list[Launch] = []
    for cells in body:
        if not cells[0]:
            units = cells
            continue
        launch: dict[str, float] = {}
        for name, unit, value in zip(header, units, cells, strict=True):
            if "__" in name:
                _put(launch, name, unit, value)
        launches.append(launch)
    return launches


def _put(launch: dict[str, float], name: str, unit: str, value: str) -> None:
    factor = MICROSECONDS.get(unit) if "time_duration" in name else 1.0
    try:
        number = float(value.replace(",", ""))
    except ValueError:  # n/a, or empty
        return
    if factor is not None and math.isfinite(number):
        launch[name] = number * factor
