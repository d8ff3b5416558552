"""The statistics behind A/A, by simulation with fixed seeds: the 95% interval of a kernel against itself holds 1.0 in 95% of runs.

Each noise is a way in which a machine spoils times. A round reads both candidates one after the other, in random order, as
`interleave` does; the values are shares of the time. The table in `kernelyard.measure.stats` is what this file computes:
`python tests/measure/test_coverage.py` prints it.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Iterator

import pytest

from kernelyard.measure.stats import Batches, Interval, median_interval, ratio_interval

Reading = Callable[[random.Random], Iterator[float]]
"""An endless run of noise, in order of time."""
ROUNDS = 7
COUNTS = (3, 5, 8, 12)


def normal(rng: random.Random) -> Iterator[float]:
    """Independent, 1%."""
    while True:
        yield rng.gauss(0, 0.01)


def heavy_tailed(rng: random.Random) -> Iterator[float]:
    """Mostly a little slow, and every tenth reading slow by 30% on average: neighbours."""
    while True:
        yield rng.expovariate(100) + (rng.expovariate(1 / 0.3) if rng.random() < 0.1 else 0.0)


def drifting(rng: random.Random) -> Iterator[float]:
    """0.1% slower with each reading, and 0.5% of noise: a GPU that warms up."""
    for step in range(1 << 30):
        yield 0.001 * step + rng.gauss(0, 0.005)


def autocorrelated(rng: random.Random) -> Iterator[float]:
    """Each reading keeps 0.9 of the last one's noise: a clock that hunts."""
    noise = 0.0
    while True:
        noise = 0.9 * noise + rng.gauss(0, 0.004)
        yield noise


def wandering(rng: random.Random) -> Iterator[float]:
    """A random walk: it never comes back."""
    noise = 0.0
    while True:
        noise += rng.gauss(0, 0.004)
        yield noise


NOISES = (normal, heavy_tailed, drifting, autocorrelated, wandering)


def comparison(noise: Reading, batches: int, seed: int, slower: float = 0.0, own: float = 0.0) -> tuple[Batches, Batches]:
    """Times of two candidates that differ by the share `slower`; `own` is noise that a candidate keeps for a whole batch."""
    rng = random.Random(seed)
    readings, found = noise(rng), ([[] for _ in range(batches)], [[] for _ in range(batches)])
    for batch in range(batches):
        levels = [rng.gauss(0, own) for _ in range(2)]
        for _ in range(ROUNDS):
            for which in rng.sample((0, 1), 2):
                found[which][batch].append(math.exp(next(readings) + levels[which]) * (1 + slower * which))
    return found


def against_itself(noise: Reading, batches: int, runs: int, own: float = 0.0) -> tuple[float, float]:
    """The share of A/A runs whose interval holds 1.0, and the median width of their intervals."""
    intervals = [ratio_interval(*comparison(noise, batches, seed, own=own)) for seed in range(runs)]
    found = [interval for interval in intervals if interval is not None]
    return sum(interval.contains(1.0) for interval in found) / runs, statistics.median(interval.spread for interval in found)


@pytest.mark.parametrize("batches", COUNTS)
@pytest.mark.parametrize("noise", NOISES)
def test_the_interval_of_a_kernel_against_itself_holds_one(noise: Reading, batches: int) -> None:
    share, _ = against_itself(noise, batches, runs=1000 // len(NOISES))
    assert share >= 0.95


@pytest.mark.parametrize("batches", COUNTS)
def test_it_holds_one_where_a_batch_favours_one_candidate_throughout(batches: int) -> None:
    share, _ = against_itself(normal, batches, runs=500, own=0.01)
    assert share >= 0.95


def test_stopping_as_soon_as_intervals_are_narrow_keeps_the_promise() -> None:
    held = [stopped(seed).contains(1.0) for seed in range(300)]
    assert sum(held) / len(held) >= 0.95


def stopped(seed: int) -> Interval:
    """As `interleave` stops: from 3 batches on, once both times are within plus or minus 1%."""
    a, b = comparison(normal, 12, seed, own=0.003)
    enough = (n for n in range(3, 12) if all(median_interval(times[:n]).spread <= 0.02 for times in (a, b)))
    batches = next(enough, 12)
    interval = ratio_interval(a[:batches], b[:batches])
    assert interval is not None
    return interval


@pytest.mark.parametrize(("batches", "width"), [(3, 0.05), (5, 0.025), (8, 0.016), (12, 0.012)])
def test_intervals_stay_narrow_enough_to_be_of_use(batches: int, width: float) -> None:
    assert against_itself(normal, batches, runs=200)[1] < width


@pytest.mark.parametrize(("batches", "share"), [(3, 0.6), (5, 0.98), (8, 1.0), (12, 1.0)])
def test_a_real_difference_of_three_per_cent_is_found_in_noise_of_one(batches: int, share: float) -> None:
    found = [ratio_interval(*comparison(normal, batches, seed, slower=0.03)) for seed in range(200)]
    assert sum(interval is not None and interval.verdict() == "faster" for interval in found) / len(found) >= share


@pytest.mark.parametrize("batches", COUNTS)
def test_the_interval_of_one_time_holds_the_true_median(batches: int) -> None:
    intervals = [median_interval(comparison(normal, batches, seed, own=0.01)[0]) for seed in range(500)]
    assert sum(interval.contains(1.0) for interval in intervals) / len(intervals) >= 0.95


if __name__ == "__main__":
    for noise in NOISES:
        cells = (against_itself(noise, batches, 2000) for batches in COUNTS)
        print(f"{noise.__name__:15}", *(f"{share:.3f} {100 * width:5.2f}%" for share, width in cells))
    cells = (against_itself(normal, batches, 2000, own=0.01) for batches in COUNTS)
    print(f"{'by batch, 1%':15}", *(f"{share:.3f} {100 * width:5.2f}%" for share, width in cells))
