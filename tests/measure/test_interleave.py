"""The protocol on clocks that are told what to read."""

from __future__ import annotations

import gc
import itertools
from collections.abc import Callable
from typing import Any

import pytest

from kernelyard.errors import MeasurementFailed, UsageError
from kernelyard.measure.clocks import Stopwatch
from kernelyard.measure.interleave import Plan, calibrate, interleave

QUICK = Plan(batches=3, most_batches=3, budget_s=0.05, warm_up_s=0.0)


def constant(us: float, **options: Any) -> Stopwatch:
    """A clock on which each call takes so long."""
    return Stopwatch("fake", lambda calls: us * calls, **options)


def recording(log: list[str], name: str, us: float = 100.0) -> Stopwatch:
    """A clock that writes its name down at each sample."""

    def elapsed(calls: int) -> float:
        log.append(name)
        return us * calls

    return Stopwatch("fake", elapsed, most_calls=1, lead_in=0.0)


def test_each_round_times_every_candidate_once_in_an_order_of_its_own() -> None:
    log: list[str] = []
    measured = interleave({name: recording(log, name) for name in "abcd"}, QUICK, "device")
    samples = sum(map(len, measured.samples["a"]))
    taken = log[-4 * samples :]
    rounds = [tuple(taken[i : i + 4]) for i in range(0, len(taken), 4)]
    assert all(sorted(once) == list("abcd") for once in rounds)
    assert len(set(rounds)) > len(rounds) // 4


def test_the_order_follows_from_the_seed() -> None:
    logs: list[list[str]] = []
    for seed in (1, 1, 2):
        log: list[str] = []
        plan = Plan(batches=3, most_batches=3, budget_s=1e6, warm_up_s=0.0, seed=seed)
        interleave({name: recording(log, name) for name in "abc"}, plan, "device")
        logs.append(log[-180:])
    assert logs[0] == logs[1] != logs[2]


def test_fewer_than_three_batches_are_refused() -> None:
    with pytest.raises(UsageError, match="3 independent"):
        Plan(batches=2)


def test_a_steady_clock_stops_at_three_batches() -> None:
    assert interleave({"a": constant(50.0)}, Plan(warm_up_s=0.0), "device").timing("a").batches == 3


def test_an_unsteady_clock_goes_on_to_the_most_batches_and_is_called_noisy() -> None:
    factors = itertools.cycle((1.0, 1.0, 1.7, 2.9, 1.3))
    watch = Stopwatch("fake", lambda calls: 50.0 * calls * next(factors), lead_in=0.0)
    timing = interleave({"a": watch}, Plan(most_batches=6, budget_s=60.0, warm_up_s=0.0), "device").timing("a")
    assert timing.batches == 6
    assert "interval" in timing.noisy and "warm-up" in timing.noisy


def test_the_first_calls_are_in_no_sample() -> None:
    costs = itertools.chain([1e6, 3e5, 5e4], itertools.repeat(10.0))
    timing = interleave({"a": Stopwatch("fake", lambda calls: sum(itertools.islice(costs, calls)))}, QUICK, "device").timing("a")
    assert timing.high_us == pytest.approx(10.0)


def test_calls_are_added_until_a_sample_is_long_enough() -> None:
    assert calibrate(constant(0.5), 1000.0) >= 2000
    assert calibrate(constant(5000.0), 1000.0) == 1
    assert calibrate(constant(1.0, grain=200, most_calls=200), 1000.0) == 200
    assert calibrate(constant(1.0, grain=7), 1000.0) % 7 == 0


def test_one_stretched_reading_does_not_end_the_calibration() -> None:
    readings = itertools.chain([1e6], itertools.repeat(0.0))
    assert calibrate(Stopwatch("fake", lambda calls: 1.0 * calls + next(readings)), 1000.0) >= 1000


def test_a_clock_that_stands_still_gives_a_finite_count_and_no_ratio() -> None:
    measured = interleave({"none": constant(0.0), "real": constant(3.0)}, QUICK, "device")
    timing = measured.timing("none")
    assert timing.median_us == 0.0 and 0 < timing.calls < 10**9
    assert "below the clock's resolution" in timing.noisy and measured.below_resolution("none")
    assert measured.ratio("real", "none") is None and measured.ratio("none", "real") is None


@pytest.mark.parametrize("reading", [float("nan"), float("inf"), -1.0])
def test_a_reading_that_is_no_time_fails_the_measurement(reading: float) -> None:
    with pytest.raises(MeasurementFailed, match="fake clock read"):
        interleave({"a": Stopwatch("fake", lambda calls: reading)}, QUICK, "device")


def test_a_candidate_that_raises_is_named() -> None:
    def broken(calls: int) -> float:
        raise ValueError("illegal address")

    with pytest.raises(MeasurementFailed, match=r"cpp\.bad raised ValueError .*illegal address"):
        interleave({"cpp.good": constant(1.0), "cpp.bad": Stopwatch("fake", broken)}, QUICK, "device")


def looped(us: float, loop_us: float) -> Stopwatch:
    """A clock that reads a call and the loop around it."""
    return Stopwatch("fake", lambda calls: (us + loop_us) * calls, empty_us=lambda calls: loop_us * calls)


def test_the_loop_around_the_calls_is_taken_off() -> None:
    assert interleave({"a": looped(8.0, 2.0)}, QUICK, "device").timing("a").median_us == pytest.approx(8.0)


def test_what_is_left_of_an_empty_loop_is_no_time() -> None:
    assert interleave({"a": looped(0.2, 2.0)}, QUICK, "device").below_resolution("a")


def test_less_than_four_steps_of_the_clock_is_no_time() -> None:
    coarse = Stopwatch("fake", lambda calls: 30.0, most_calls=1, resolution_us=10.0)
    assert interleave({"a": coarse}, QUICK, "device").below_resolution("a")


def test_a_stretched_empty_loop_takes_nothing_from_the_kernel() -> None:
    loops = itertools.cycle((900.0, 0.1, 700.0))
    watch = Stopwatch("fake", lambda calls: 10.1 * calls, empty_us=lambda calls: next(loops) * calls)
    assert interleave({"a": watch}, QUICK, "device").timing("a").median_us == pytest.approx(10.0)


def test_one_sample_of_nothing_outweighs_samples_that_a_neighbour_stretched() -> None:
    readings = itertools.cycle((0.0, 700.0, 900.0))
    watch = Stopwatch("fake", lambda calls: next(readings), most_calls=1, lead_in=0.0)
    assert interleave({"a": watch}, QUICK, "device").below_resolution("a")


def test_two_clocks_give_no_ratio() -> None:
    watches = {"a": Stopwatch("graph", lambda calls: 10.0 * calls), "b": Stopwatch("events", lambda calls: 10.0 * calls)}
    assert interleave(watches, QUICK, "device").ratio("a", "b") is None


def guard_saying(words: list[str]) -> Callable[[], Callable[[], str]]:
    """A guard that has these words for the first batches, and nothing for the rest."""
    return lambda: lambda: words.pop(0) if words else ""


def test_a_disturbed_batch_is_taken_again() -> None:
    timing = interleave({"a": constant(50.0)}, QUICK, "device", guard_saying(["a neighbour", "a neighbour"])).timing("a")
    assert timing.batches == 3 and timing.noisy == ""


def test_a_disturbance_that_stays_is_reported() -> None:
    timing = interleave({"a": constant(50.0)}, QUICK, "device", guard_saying(["a neighbour"] * 5)).timing("a")
    assert timing.batches == 3 and timing.noisy == "a neighbour in 3 of 3 batches"


def test_garbage_is_not_collected_inside_samples_and_is_afterwards() -> None:
    seen: list[bool] = []

    def elapsed(calls: int) -> float:
        seen.append(gc.isenabled())
        return 100.0 * calls

    interleave({"a": Stopwatch("fake", elapsed)}, QUICK, "device")
    assert not any(seen) and gc.isenabled()
