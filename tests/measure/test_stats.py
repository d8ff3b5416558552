"""Intervals: they contain the truth, they shrink with batches, and 'n/a' and 'no difference' are answers."""

from __future__ import annotations

import random

import pytest

from kernelyard.measure.stats import Interval, median_interval, median_of_batches, ratio_interval, tail_share


def noisy_batches(mean: float, batches: int, seed: int, samples: int = 7) -> list[list[float]]:
    """Batches that differ by 2%, samples inside that are up to a few per cent slow, as real ones are."""
    rng = random.Random(seed)
    return [[mean * level * (1 + rng.expovariate(50)) for _ in range(samples)] for level in (rng.gauss(1, 0.02) for _ in range(batches))]


def test_the_time_is_the_median_of_batch_medians() -> None:
    assert median_of_batches([[1.0, 2.0, 90.0], [3.0, 3.0, 3.0], [5.0, 4.0, 6.0]]) == 3.0


@pytest.mark.parametrize("batches", [3, 5, 9])
def test_the_ratio_of_a_kernel_to_itself_contains_one_in_95_of_100(batches: int) -> None:
    ratios = [ratio_interval(noisy_batches(10, batches, 2 * i), noisy_batches(10, batches, 2 * i + 1), i) for i in range(100)]
    assert sum(ratio is not None and ratio.contains(1.0) for ratio in ratios) >= 95


def test_a_difference_of_ten_per_cent_is_seen_with_twelve_batches() -> None:
    ratio = ratio_interval(noisy_batches(9, 12, 1), noisy_batches(10, 12, 2))
    assert ratio is not None and ratio.verdict() == "faster"
    assert Interval(1.1, 1.05, 1.2).verdict() == "slower" and Interval(1.0, 0.9, 1.1).verdict() == "no difference"


def test_more_batches_narrow_the_interval() -> None:
    assert median_interval(noisy_batches(10, 30, 1)).spread < median_interval(noisy_batches(10, 4, 1)).spread


def test_a_ratio_pairs_batches_so_that_drift_common_to_both_cancels() -> None:
    drift = (1.0, 1.5, 2.0, 4.0)
    ratio = ratio_interval([[10 * d] * 5 for d in drift], [[20 * d] * 5 for d in drift])
    assert ratio == Interval(0.5, 0.5, 0.5)


def test_a_ratio_with_a_time_of_zero_is_not_available() -> None:
    assert ratio_interval([[0.0] * 3] * 3, [[1.0] * 3] * 3) is None
    assert ratio_interval([[1.0] * 3] * 3, [[0.0, 0.0, 1.0]] * 3) is None


def test_the_same_seed_gives_the_same_interval() -> None:
    batches = noisy_batches(10, 5, 3)
    assert median_interval(batches, 7) == median_interval(batches, 7) != median_interval(batches, 8)


def test_few_batches_leave_out_less_of_the_bootstrap() -> None:
    assert tail_share(1) == 0.0
    assert tail_share(3) < tail_share(5) < tail_share(12) < tail_share(1000) < 0.025
