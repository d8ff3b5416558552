"""The core of the protocol: stopwatches in, samples by batch out. It knows no op and no device."""

from __future__ import annotations

import gc
import math
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from kernelyard.errors import UsageError
from kernelyard.measure import conditions
from kernelyard.measure.clocks import Mode, Stopwatch
from kernelyard.measure.measured import Measured
from kernelyard.measure.state import DeviceState, Guard, Seen
from kernelyard.measure.stats import Batches, median_interval
from kernelyard.measure.warming import calibrate, occupy, settle, warm_up, whole

MOST_ROUNDS = 20
LEAST_ROUNDS = 2
RETAKES = 2

POWER_LEAD_S = 0.1
"""A GPU at its power cap goes as fast as what ran in the last tenth of a second lets it: each candidate's clock has to be its own.

Attention (536 us by itself) and a product (1650 us) in turn on one H200: 569 to 638 and 1469 to 1593 us; each led in by 80 ms of itself 530
to 555 and 1616 to 1708, by 40 ms 554 to 592 and 1437 to 1706 (experiments/2026-12-02-power-cap-gpu)."""

LEAST_STEPS = 10
"""What lasts fewer steps of its clock is no time: two candidates could differ by a tenth and read the same, or the other way round."""

def undisturbed() -> Callable[[], Seen]:
    """A Guard that sees nothing."""
    return Seen


@dataclass(frozen=True)
class Plan:
    """How long and how often.

    batches, most_batches  at least and at most so many
    budget_s               time for all batches; the least number of batches is taken whatever it costs
    precision              stop early once every 95% interval is within plus or minus this share of its median
    sample_us              a sample lasts at least so long: 20 000 steps of a 50 ns clock
    warm_up_s              at least so long for each candidate, and until stable, at most five times as long
    settle_s               at most so long for all together, until a GPU's clock and temperature stand still
    """

    batches: int = 3
    most_batches: int = 12
    budget_s: float = 3.0
    precision: float = 0.01
    sample_us: float = 1000.0
    warm_up_s: float = 0.05
    settle_s: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.batches < 3:
            raise UsageError(f"{self.batches} batches were asked for.", exists="At least 3 independent ones make an interval.")
        object.__setattr__(self, "most_batches", max(self.most_batches, self.batches))


def interleave(watches: Mapping[str, Stopwatch], plan: Plan, mode: Mode, guard: Guard = undisturbed) -> Measured:
    """Warm each candidate up, then take batches until they agree; see `kernelyard.measure.protocol.measure`."""
    watches = {name: replace(watch, name=name) for name, watch in watches.items()}
    with _collector_off():
        judge = guard()
        unstable = frozenset(name for name, watch in watches.items() if not warm_up(watch, plan))
        calls = {name: calibrate(watch, plan.sample_us) for name, watch in watches.items()}
        unsettled = settle(watches, calls, plan, guard, judge())
        empties: Batch = {name: [] for name in watches}
        taken, seen = _batches(watches, calls, plan, guard, empties)
    samples = {name: _net([batch[name] for batch in taken], empties[name], watches[name], calls[name]) for name in watches}
    states = tuple(state for batch in seen for state in batch.states)
    return Measured(mode, samples, calls, watches, _noise(seen, states), unstable, unsettled, batch_states=states)


Batch = dict[str, list[float]]
"""Microseconds of one call, a list for each candidate."""


def _batches(
    watches: Mapping[str, Stopwatch], calls: Mapping[str, int], plan: Plan, guard: Guard, empties: Batch
) -> tuple[list[Batch], list[Seen]]:
    rng = random.Random(plan.seed)
    lead_s = 0.0
    rounds = _rounds(watches, calls, plan, lead_s)
    taken: list[Batch] = []
    seen: list[Seen] = []
    retakes, deadline = RETAKES, time.monotonic() + plan.budget_s
    while not _enough(taken, plan, deadline):
        judge = guard()
        batch = _batch(watches, calls, rounds, rng, empties, lead_s)
        found = judge()
        if conditions.at_power_cap(found.states) and not lead_s:  # what was taken so far had its neighbours' clocks
            lead_s, taken, seen = POWER_LEAD_S, [], []
            rounds, deadline = _rounds(watches, calls, plan, lead_s), time.monotonic() + plan.budget_s
            continue
        if found.disturbance and retakes:
            retakes -= 1
            continue
        taken.append(batch)
        seen.append(found)
    return taken, seen


def _noise(seen: Sequence[Seen], states: Sequence[DeviceState]) -> str:
    disturbances = [found.disturbance for found in seen if found.disturbance]
    disturbed = f"{disturbances[-1]} in {len(disturbances)} of {len(seen)} batches" if disturbances else ""
    change = "" if conditions.at_power_cap(states) else conditions.clock_change(states)  # there each candidate has a clock of its own
    return "; ".join(filter(None, (disturbed, change)))


def _batch(
    watches: Mapping[str, Stopwatch], calls: Mapping[str, int], rounds: int, rng: random.Random, empties: Batch, lead_s: float
) -> Batch:
    """Every candidate once a round, each round in an order of its own; its empty loop is read as often, under the same conditions."""
    batch: Batch = {name: [] for name in watches}
    for _ in range(rounds):
        for name in rng.sample(list(watches), len(watches)):
            watch, count = watches[name], calls[name]
            empties[name].append(watch.read_empty(count) / count)
            occupy(watch, count, lead_s)
            if watch.lead_in:
                watch.read(whole(watch, math.ceil(count * watch.lead_in)))
            batch[name].append(watch.read(count) / count)
    return batch


def _enough(taken: list[Batch], plan: Plan, deadline: float) -> bool:
    if len(taken) < plan.batches:
        return False
    if len(taken) >= plan.most_batches or time.monotonic() >= deadline:
        return True
    intervals = (median_interval([batch[name] for batch in taken]) for name in taken[0])
    return all(interval.spread <= 2 * plan.precision for interval in intervals)


def _net(batches: Batches, empties: Sequence[float], watch: Stopwatch, calls: int) -> Batches:
    """Samples without the loop; all zeros where the least of them is hardly longer than the loop, or than ten steps of the clock.

    The least, because noise adds time and never takes it away: the least sample and the least empty loop are nearest
    to what was done. On a machine busy with other work an empty loop still read 0.4 of itself too long.
    """
    overhead = min(empties)
    least = min(map(min, batches)) - overhead
    if least < max(LEAST_STEPS * watch.resolution_us / calls, 0.5 * overhead):
        return tuple(tuple(0.0 for _ in batch) for batch in batches)
    return tuple(tuple(sample - overhead for sample in batch) for batch in batches)


def _rounds(watches: Mapping[str, Stopwatch], calls: Mapping[str, int], plan: Plan, lead_s: float) -> int:
    """As many as fit a batch's share of the budget; timed here, because a clock may not count what it costs (flushes)."""
    start = time.monotonic()
    for name, watch in watches.items():
        watch.read(calls[name])
    once = (time.monotonic() - start) * 1.2 + lead_s * len(watches)
    share = plan.budget_s / plan.most_batches
    return min(max(int(share / once), LEAST_ROUNDS), MOST_ROUNDS) if once else MOST_ROUNDS


@contextmanager
def _collector_off() -> Iterator[None]:
    """A garbage collection in a sample is no part of the kernel."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
