"""Pairs of kernel and config timed against each other on one workload, by the protocol of finals."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from kernelyard.errors import MeasurementFailed
from kernelyard.measure.stats import ratio_interval
from kernelyard.registry import choices, rules
from kernelyard.registry.dispatch import select
from kernelyard.registry.op import Op
from kernelyard.registry.registry import Registry
from kernelyard.registry.spec import Config, Timing, Workload, config_key
from kernelyard.tuner.answers import Asked
from kernelyard.tuner.bench import Item, Times
from kernelyard.tuner.finals import Finalist, interleaved
from kernelyard.tuner.hands import Here
from kernelyard.tuner.keeping import measurement
from kernelyard.tuner.plan import is_reference, serves
from kernelyard.tuner.portfolio import Pair
from kernelyard.tuner.session import Session


@dataclass(frozen=True)
class Row:
    """One workload: the times of the pairs that were right on it, and each over the fastest, 1.0 for that one itself."""

    workload: Workload
    timings: Mapping[Pair, Timing]
    ratios: Mapping[Pair, float]
    protocol: str

    @property
    def best(self) -> Pair:
        """The fastest."""
        return min(self.ratios, key=lambda pair: self.ratios[pair])

    def loss(self, pair: Pair) -> float:
        """By how much a pair is above the fastest, as a fraction."""
        return self.ratios[pair] - 1

    def noisy(self, pair: Pair) -> str:
        """Why a pair's time, or the one it is held against, should not be leaned on; empty where both may be."""
        return next((self.timings[one].noisy for one in (pair, self.best) if one in self.timings and self.timings[one].noisy), "")


def pair_of(kernel: str, config: Config) -> Pair:
    """A kernel and a config as a key."""
    return kernel, config_key(config)


def config_of(pair: Pair) -> dict[str, Any]:
    """The config of a pair."""
    return dict(json.loads(pair[1]))


def told(pair: Pair) -> dict[str, Any]:
    """A pair as JSON says it."""
    return {"kernel": pair[0], "config": config_of(pair)}


def untuned(op: Op, workload: Workload) -> Pair:
    """What serves a workload of which nothing is stored."""
    with choices.none(), rules.none():
        selection = select(op, workload)
    return pair_of(selection.kernel.name, selection.config)


def runs(registry: Registry, op: Op, pair: Pair, workload: Workload) -> bool:
    """Whether the kernel supports the workload and the config keeps its constraints there."""
    kernel = registry.kernel(op.name, pair[0])
    try:
        return bool(serves(registry, kernel, workload) and kernel.space.allows(config_of(pair), workload))
    except Exception:  # a plugin's constraint: the pair doesn't count on this workload
        return False


def measured(session: Session[Here], workload: Workload, pairs: Iterable[Pair], stage: str) -> Row:
    """Build, check and time the pairs that can run, interleaved; the times are stored. Raises MeasurementFailed where none is right.

    As long as finals that were close: what is to be told apart is some percent.
    """
    asked, bench, op = session.asked, session.hands.bench, session.asked.op
    able = [pair for pair in dict.fromkeys(pairs) if runs(asked.registry, op, pair, workload)]
    entries = {pair: _finalist(asked, pair, workload) for pair in able}
    bench.keep([one.item for one in entries.values()])
    results = {one.item.id: bench.prepare(one.item) for one in entries.values()}
    times = interleaved(bench, list(entries.values()), results, asked.limits.again, asked.limits)
    bench.keep([])
    timings = _timings(times, entries) if times is not None else {}
    if times is None or not timings:
        why = "; ".join(sorted({result.reason for result in results.values() if result.reason})) or "no pair can run"
        raise MeasurementFailed(f"{op.name} on {workload.label()}: no pair of the portfolio could be timed: {why}.")
    row = Row(workload, timings, _ratios(times, timings, entries), times.protocol)
    found = [measurement(asked, entries[pair].item, timing, stage, row.protocol) for pair, timing in timings.items()]
    session.store.save_measurements(found)
    return row


def _finalist(asked: Asked, pair: Pair, workload: Workload) -> Finalist:
    reference = is_reference(asked.registry.kernel(asked.op.name, pair[0]), asked.op)
    return Finalist(Item(pair[0], config_of(pair), workload, patient=reference), reference)


def _timings(times: Times, entries: Mapping[Pair, Finalist]) -> dict[Pair, Timing]:
    found = {pair: times.timings[one.item.id] for pair, one in entries.items() if one.item.id in times.timings}
    return {pair: timing for pair, timing in found.items() if timing.median_us > 0 and entries[pair].item.id not in times.impossible}


def _ratios(times: Times, timings: Mapping[Pair, Timing], entries: Mapping[Pair, Finalist]) -> dict[Pair, float]:
    """Each over the fastest median, paired by batch as in finals: what slows a whole batch does not count against one pair."""
    best = min(timings, key=lambda pair: timings[pair].median_us)
    ratios = {}
    for pair in timings:
        ratio = ratio_interval(times.samples[entries[pair].item.id], times.samples[entries[best].item.id])
        ratios[pair] = ratio.median if ratio is not None and pair != best else timings[pair].median_us / timings[best].median_us
    least = min(ratios.values())  # a pair that ties with the fastest may be below it when paired
    return {pair: ratio / least for pair, ratio in ratios.items()}
