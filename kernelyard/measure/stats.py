"""Medians and bootstrap intervals of times that were taken in batches.

Times inside a batch share its conditions (clock, temperature, neighbours), so batches, and not single samples, are
what is independent. The bootstrap is hierarchical: batches are drawn with replacement, then samples inside each.
With few batches plain percentiles are too narrow, so the percentiles are moved outwards as Hesterberg, "What
Teachers Should Know About the Bootstrap" (2014), section 3.3, does: with 3 batches the interval is all that the
bootstrap saw, with 30 it is nearly the usual 2.5% to 97.5%.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

Batches = Sequence[Sequence[float]]
"""Samples by batch, microseconds."""

RESAMPLES = 1000
_T_975 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110,
          2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042)  # fmt: skip
"""Student's t at 97.5%, by degrees of freedom from 1 to 30."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A median with its 95% interval."""

    median: float
    low: float
    high: float

    def contains(self, value: float) -> bool:
        """Whether the value is inside: for a ratio, `contains(1.0)` means that no difference was shown."""
        return self.low <= value <= self.high

    @property
    def spread(self) -> float:
        """The width of the interval as a share of the median; 0 for a median of 0."""
        return (self.high - self.low) / self.median if self.median else 0.0

    def verdict(self) -> str:
        """What a ratio of two times says of the first one: 'faster', 'slower' or 'no difference'."""
        if self.contains(1.0):
            return "no difference"
        return "faster" if self.high < 1.0 else "slower"


def median_of_batches(batches: Batches) -> float:
    """The median over batches of each batch's median."""
    return statistics.median(statistics.median(batch) for batch in batches)


def median_interval(batches: Batches, seed: int = 0) -> Interval:
    """The median time and its 95% interval, bootstrapped over batches and inside them."""
    rng = _generator(seed)
    chosen = _draw_batches(rng, len(batches))
    medians = _batch_medians(rng, batches)
    low, high = _expanded_percentiles(_median(_pick(medians, chosen)), len(batches))
    return _around(median_of_batches(batches), low, high)


def ratio_interval(a: Batches, b: Batches, seed: int = 0) -> Interval | None:
    """The time of a over the time of b, paired by batch; None where a time is 0, below the clock's resolution."""
    pairs = [(statistics.median(x), statistics.median(y)) for x, y in zip(a, b, strict=True)]
    if any(x <= 0 or y <= 0 for x, y in pairs):
        return None
    rng = _generator(seed)
    chosen = _draw_batches(rng, len(pairs))
    tops, bottoms = _batch_medians(rng, a), _batch_medians(rng, b)
    if (bottoms <= 0).any() or (tops <= 0).any():
        return None
    low, high = _expanded_percentiles(_median(_pick(tops / bottoms, chosen)), len(pairs))
    return _around(statistics.median(x / y for x, y in pairs), low, high)


def _generator(seed: int) -> np.random.Generator:
    import numpy

    return numpy.random.default_rng(seed)


def _draw_batches(rng: np.random.Generator, count: int) -> Any:
    """(RESAMPLES, count) indices of batches."""
    return rng.integers(0, count, (RESAMPLES, count))


def _batch_medians(rng: np.random.Generator, batches: Batches) -> Any:
    """(RESAMPLES, batches) medians of resampled batches."""
    import numpy

    columns = []
    for batch in batches:
        values = numpy.asarray(batch, dtype=float)
        columns.append(_median(values[rng.integers(0, len(values), (RESAMPLES, len(values)))]))
    return numpy.stack(columns, axis=1)


def _median(values: Any) -> Any:
    import numpy

    return numpy.median(values, axis=1)


def _pick(medians: Any, chosen: Any) -> Any:
    import numpy

    return numpy.take_along_axis(medians, chosen, axis=1)


def _expanded_percentiles(values: Any, batches: int) -> tuple[float, float]:
    import numpy

    tail = tail_share(batches)
    low, high = numpy.quantile(values, [tail, 1 - tail])
    return float(low), float(high)


def tail_share(batches: int) -> float:
    """The share of the bootstrap to leave out on each side, for a 95% interval from so many batches."""
    if batches < 2:
        return 0.0
    t = _T_975[min(batches - 1, len(_T_975)) - 1]
    return NormalDist().cdf(-math.sqrt(batches / (batches - 1)) * t)


def _around(median: float, low: float, high: float) -> Interval:
    return Interval(median, min(low, median), max(high, median))
