"""Medians and 95% intervals of times that were taken in batches.

Times inside a batch share its conditions (clock, temperature, neighbours), so batches, and not single samples, are what
is independent. A round times every candidate once, one right after the other and in random order: a ratio is therefore
taken inside each round, where drift and neighbours met both alike, and a batch's ratio is the median of its rounds'.

The interval is Student's t on logarithms (a ratio and its inverse then get the same interval), as Georges et al.,
"Statistically Rigorous Java Performance Evaluation" (OOPSLA 2007), section 3, has it for few measurements, and it is the
wider of two:

- over batches, by the spread of the batches' medians. It holds whatever the batches share inside. Three batches may
  agree by chance, though, and batches are only added until intervals are narrow, which favours such chances; so also
- inside batches, by the spread of rounds around their batch's median (robust: by the median absolute deviation), times
  sqrt(pi / 2), the error of a median against that of a mean. Three batches of seven rounds can't agree by chance on this.

Both are taken at 98%. What is left to 95% pays for what a t doesn't know: stopping as soon as intervals are narrow, long
tails, neighbours that outlast a batch.

How often the interval of a kernel against itself holds 1.0, and how wide it is (median), 2000 simulated runs a cell, 7 rounds
a batch; `tests/measure/test_coverage.py` says what each noise is, holds the shares, and prints this table:

                    3 batches       5 batches       8 batches       12 batches
    normal, 1%      0.996  4.45%    0.994  2.01%    0.989  1.33%    0.989  1.01%
    heavy-tailed    1.000  4.06%    0.999  2.02%    0.997  1.40%    0.993  1.07%
    drifting        0.993  2.23%    0.994  1.03%    0.993  0.67%    0.987  0.51%
    autocorrelated  0.997  1.27%    0.996  0.59%    0.991  0.39%    0.989  0.29%
    wandering       0.997  1.25%    0.993  0.57%    0.991  0.38%    0.990  0.29%
    by batch, 1%    0.985 10.20%    0.984  4.74%    0.982  3.16%    0.982  2.35%

Tried and lost: a bootstrap over batches. Its plain percentiles hold 1.0 in 0.75, 0.94, 0.92 and 0.92 of the runs in normal
noise (three batches can only be drawn in ten ways). Moved outwards as Hesterberg, "What Teachers Should Know About the
Bootstrap" (2014), section 3.3, does, and with samples drawn inside batches too, they always held it, 1.2 to 2.2 times as wide
as the intervals here.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import NormalDist

Batches = Sequence[Sequence[float]]
"""Samples by batch, microseconds. Where two candidates are compared, sample i of a batch is of the same round for both."""

LEVEL = 0.98
_T = (31.821, 6.965, 4.541, 3.747, 3.365, 3.143, 2.998, 2.896, 2.821, 2.764, 2.718, 2.681)
"""Student's t at 99%, which is 98% between both ends, by degrees of freedom from 1 to 12."""


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


def median_interval(batches: Batches) -> Interval:
    """The median time and its 95% interval; where a time is 0, below the clock's resolution, the interval spans the batches' medians."""
    median = median_of_batches(batches)
    if not _positive(batches):
        medians = [statistics.median(batch) for batch in batches]
        return Interval(median, min(medians), max(medians))
    return _interval(median, [[math.log(sample) for sample in batch] for batch in batches])


def ratio_interval(a: Batches, b: Batches) -> Interval | None:
    """The time of a over the time of b, paired by round; None where a time is 0, below the clock's resolution."""
    if not (_positive(a) and _positive(b)):
        return None
    logs = [[math.log(x / y) for x, y in zip(one, other, strict=True)] for one, other in zip(a, b, strict=True)]
    return _interval(math.exp(median_of_batches(logs)), logs)


def _positive(batches: Batches) -> bool:
    return all(sample > 0 for batch in batches for sample in batch)


def _interval(median: float, logs: Batches) -> Interval:
    """The wider of the two intervals around the mean of the batches' medians, opened where needed to hold the median itself."""
    medians = [statistics.median(batch) for batch in logs]
    middle, half = statistics.fmean(medians), max(_between(medians), _within(logs, medians))
    return Interval(median, min(math.exp(middle - half), median), max(math.exp(middle + half), median))


def _between(medians: Sequence[float]) -> float:
    """Half the interval by the spread of batches; 0 for a single batch, which has none."""
    count = len(medians)
    return t_quantile(count - 1) * statistics.stdev(medians) / math.sqrt(count) if count > 1 else 0.0


def _within(logs: Batches, medians: Sequence[float]) -> float:
    """Half the interval by the spread inside batches; 0 where batches have a single sample."""
    samples, freedom = sum(map(len, logs)), sum(len(batch) - 1 for batch in logs)
    if not freedom:
        return 0.0
    deviation = statistics.median(_distances(logs, medians)) / NormalDist().inv_cdf(0.75) * math.sqrt(samples / freedom)
    return t_quantile(freedom) * deviation * math.sqrt(math.pi / 2 / samples)


def _distances(logs: Batches, medians: Sequence[float]) -> Iterable[float]:
    return (abs(sample - median) for batch, median in zip(logs, medians, strict=True) for sample in batch)


def t_quantile(freedom: int) -> float:
    """Student's t at 99%: from a table, beyond it by the expansion of Abramowitz and Stegun, 26.7.5, right to 0.003 there."""
    if freedom <= len(_T):
        return _T[freedom - 1]
    z = NormalDist().inv_cdf((1 + LEVEL) / 2)
    first, second = (z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96
    return z + first / freedom + second / freedom**2
