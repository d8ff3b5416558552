"""Intervals: paired by round, narrower with more batches; 'n/a' and 'no difference' are answers. test_coverage.py has what they promise."""

from __future__ import annotations

import random

import pytest

from kernelyard.measure.stats import Interval, median_interval, median_of_batches, ratio_interval, t_quantile


def noisy_batches(mean: float, batches: int, seed: int, samples: int = 7) -> list[list[float]]:
    """Batches that differ by 2%, samples inside that are up to a few per cent slow, as real ones are."""
    rng = random.Random(seed)
    return [[mean * level * (1 + rng.expovariate(50)) for _ in range(samples)] for level in (rng.gauss(1, 0.02) for _ in range(batches))]


def test_the_time_is_the_median_of_batch_medians() -> None:
    assert median_of_batches([[1.0, 2.0, 90.0], [3.0, 3.0, 3.0], [5.0, 4.0, 6.0]]) == 3.0


def test_a_difference_of_ten_per_cent_is_seen_with_twelve_batches() -> None:
    ratio = ratio_interval(noisy_batches(9, 12, 1), noisy_batches(10, 12, 2))
    assert ratio is not None and ratio.verdict() == "faster"
    assert Interval(1.1, 1.05, 1.2).verdict() == "slower" and Interval(1.0, 0.9, 1.1).verdict() == "no difference"


def test_more_batches_narrow_the_interval() -> None:
    assert median_interval(noisy_batches(10, 30, 1)).spread < median_interval(noisy_batches(10, 4, 1)).spread


def test_a_ratio_pairs_rounds_so_that_what_met_both_alike_cancels() -> None:
    drift = [[1.0, 1.5, 9.0], [2.0, 1.0, 4.0], [4.0, 0.5, 3.0]]
    ratio = ratio_interval([[10 * d for d in batch] for batch in drift], [[20 * d for d in batch] for batch in drift])
    assert ratio is not None and (ratio.low, ratio.median, ratio.high) == pytest.approx((0.5, 0.5, 0.5))


def test_a_ratio_the_other_way_round_is_its_inverse() -> None:
    a, b = noisy_batches(9, 5, 1), noisy_batches(10, 5, 2)
    one, other = ratio_interval(a, b), ratio_interval(b, a)
    assert one is not None and other is not None
    assert (one.low, one.median, one.high) == pytest.approx((1 / other.high, 1 / other.median, 1 / other.low))


def test_batches_that_agree_by_chance_do_not_hide_the_noise_inside_them() -> None:
    rounds = [[9.0, 10.0, 11.0]] * 3
    assert median_interval(rounds).spread > 0.05 and median_interval([[10.0] * 3] * 3).spread == pytest.approx(0.0)


def test_batches_that_differ_widen_the_interval_however_calm_each_is() -> None:
    interval = median_interval([[9.0] * 20, [10.0] * 20, [11.0] * 20])
    assert interval.low < 9.0 and interval.high > 11.0


def test_a_batch_may_have_a_single_sample() -> None:
    interval = median_interval([[9.0], [10.0], [11.0]])
    assert interval.low < 10.0 < interval.high and median_interval([[10.0]]) == Interval(10.0, pytest.approx(10.0), pytest.approx(10.0))


def test_a_ratio_with_a_time_of_zero_is_not_available() -> None:
    assert ratio_interval([[0.0] * 3] * 3, [[1.0] * 3] * 3) is None
    assert ratio_interval([[1.0] * 3] * 3, [[0.0, 0.0, 1.0]] * 3) is None


def test_times_of_zero_have_a_finite_interval() -> None:
    assert median_interval([[0.0] * 3] * 3) == Interval(0.0, 0.0, 0.0)
    assert median_interval([[0.0, 1.0, 2.0], [0.0, 0.0, 1.0], [3.0, 3.0, 3.0]]) == Interval(1.0, 0.0, 3.0)


@pytest.mark.parametrize(("freedom", "t"), [(1, 31.821), (12, 2.681), (13, 2.650), (30, 2.457), (120, 2.358)])
def test_quantiles_of_t_are_those_of_the_tables(freedom: int, t: float) -> None:
    assert t_quantile(freedom) == pytest.approx(t, abs=0.003)
