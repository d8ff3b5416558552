"""The protocol on clocks that are told what to read."""

from __future__ import annotations

import gc
import itertools
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from kernelyard.errors import MeasurementFailed, UsageError
from kernelyard.measure.clocks import Stopwatch
from kernelyard.measure.interleave import Plan, interleave
from kernelyard.measure.state import DeviceState, Guard, Seen
from kernelyard.measure.warming import calibrate

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


def test_less_than_ten_steps_of_the_clock_is_no_time() -> None:
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


def guard_saying(*words: str) -> Guard:
    """A guard that has these words for the warm-up and the first batches, and nothing for the rest."""
    left = iter(words)
    return lambda: lambda: Seen(disturbance=next(left, ""))


def test_a_disturbed_batch_is_taken_again() -> None:
    timing = interleave({"a": constant(50.0)}, QUICK, "device", guard_saying("", "a neighbour", "a neighbour")).timing("a")
    assert timing.batches == 3 and timing.noisy == ""


def test_a_disturbance_that_stays_is_reported() -> None:
    timing = interleave({"a": constant(50.0)}, QUICK, "device", guard_saying("", *["a neighbour"] * 5)).timing("a")
    assert timing.batches == 3 and timing.noisy == "a neighbour in 3 of 3 batches"


def test_at_the_power_cap_each_sample_is_led_in_by_the_candidates_own_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernelyard.measure.interleave.POWER_LEAD_S", 0.001)
    log: list[str] = []
    watches = {name: replace(recording(log, name), work=lambda calls, name=name: log.append(f"{name} ahead")) for name in "ab"}
    capped = DeviceState("cuda", 0.0, mhz=1600, throttle=("power cap",))
    measured = interleave(watches, QUICK, "device", lambda: lambda: Seen((capped, replace(capped, mhz=1800))))
    assert measured.timing("a").noisy == "" and measured.timing("a").batches == 3
    samples = sum(map(len, measured.samples["a"]))
    runs = ["".join(same) for same, _ in itertools.groupby(log[log.index("a ahead") - len(log) :])]
    tail = runs[-4 * samples :]
    assert sorted(tail[::2]) == sorted(["a ahead", "b ahead"] * samples) and [f"{name} ahead" for name in tail[1::2]] == tail[::2]


def test_below_the_power_cap_nothing_is_led_in() -> None:
    log: list[str] = []
    watch = replace(recording(log, "a"), work=lambda calls: log.append("ahead"))
    interleave({"a": watch}, QUICK, "device", guard_of([gpu(1980, 40)]))
    assert "ahead" not in log


def gpu(mhz: int, degrees: int) -> DeviceState:
    return DeviceState("cuda", 0.0, mhz=mhz, temperature_c=degrees)


def guard_of(states: list[DeviceState]) -> Guard:
    """A guard that reads these states one after the other, and the last one for ever."""
    return lambda: partial(_seen, states, _next(states))


def _next(states: list[DeviceState]) -> DeviceState:
    return states.pop(0) if len(states) > 1 else states[0]


def _seen(states: list[DeviceState], start: DeviceState) -> Seen:
    return Seen((start, _next(states)))


def test_the_states_of_every_batch_are_kept_and_told_as_ranges() -> None:
    states = [gpu(1980, 41), gpu(1980, 41), gpu(1980, 41), gpu(1965, 42), gpu(1980, 44)]
    measured = interleave({"a": constant(50.0)}, QUICK, "device", guard_of(states))
    assert len(measured.batch_states) == 6 and measured.timing("a").noisy == ""
    assert measured.notes("a") == measured.conditions == "SM clock 1965-1980 MHz, 41-44 C"


def test_a_gpu_clock_that_moves_between_batches_is_noise() -> None:
    states = [gpu(1980, 41), gpu(1980, 41), gpu(1980, 41), gpu(1500, 41)]
    measured = interleave({"a": constant(50.0)}, QUICK, "device", guard_of(states))
    assert measured.timing("a").noisy == "the SM clock moved between 1500 and 1980 MHz"


def test_a_clock_that_rises_in_the_warm_up_is_waited_for() -> None:
    plan = replace(QUICK, settle_s=60.0)
    states = [gpu(345, 30), gpu(1980, 34), gpu(1980, 34), gpu(1980, 37), gpu(1980, 37), gpu(1980, 38)]
    measured = interleave({"a": constant(50.0)}, plan, "device", guard_of(states))
    assert measured.unsettled == "" and {state.temperature_c for state in measured.batch_states} == {38}


def test_a_temperature_that_never_settles_is_told_and_does_not_hold_up_the_timing() -> None:
    states = [gpu(1980, degrees) for degrees in range(30, 60, 2)]
    measured = interleave({"a": constant(50.0)}, replace(QUICK, settle_s=0.0), "device", guard_of(states))
    assert measured.unsettled == "the temperature went from 30 to 32 C" and measured.unsettled in measured.notes("a")


def test_a_clock_of_15_ms_gets_longer_samples_and_is_called_coarse() -> None:
    step = 15_625.0

    def stepping(us: float, most_calls: int) -> Stopwatch:
        return Stopwatch("fake", lambda calls: us * calls // step * step, most_calls=most_calls, resolution_us=step)

    found = [interleave({"a": stepping(100.0, most)}, QUICK, "device") for most in (1 << 16, 1 << 10)]
    fine = found[0].timing("a")
    assert fine.median_us == pytest.approx(100.0, rel=0.05) and "clock steps by 1.56e+04 us" in fine.noisy
    assert found[1].below_resolution("a")


def test_a_clock_that_stands_still_does_not_hang_the_calibration(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = itertools.count()
    monkeypatch.setattr("kernelyard.measure.warming.time.monotonic", lambda: float(next(seconds)))
    asked: list[int] = []
    assert calibrate(Stopwatch("fake", lambda calls: asked.append(calls) or 0.0), 1000.0) == 1 and asked == [1]  # type: ignore[func-returns-value]


def test_garbage_is_not_collected_inside_samples_and_is_afterwards() -> None:
    seen: list[bool] = []

    def elapsed(calls: int) -> float:
        seen.append(gc.isenabled())
        return 100.0 * calls

    interleave({"a": Stopwatch("fake", elapsed)}, QUICK, "device")
    assert not any(seen) and gc.isenabled()
