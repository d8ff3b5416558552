"""Samplers compared on recorded spaces: the tuner's own search, with a look into the record in place of a build, a check and a timing."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import optuna

from kernelyard.registry.rule import distance
from kernelyard.registry.spec import Config, config_key
from kernelyard.tuner.bench import Finished, Result
from kernelyard.tuner.plan import KernelPlan
from kernelyard.tuner.samplers import Sampling
from kernelyard.tuner.search import search
from kernelyard.tuner.spaces import Recorded, median_us

CLOSE = 1.02
"""A search has arrived within 2% of the best median that was recorded: closer is below the noise of a trial."""


@dataclass(frozen=True)
class Row:
    """Trials until a search arrived, over seeds, from one of three starts.

    'blind': the sampler alone. 'cold': the author's default and hints first, as `tune` has them. 'warm': then the best of `near`.
    """

    op: str
    kernel: str
    workload: str
    configs: int
    sampler: str
    start: str
    near: str
    lower: float
    median: float
    upper: float


def compare(spaces: Sequence[Recorded], samplings: Sequence[Sampling], seeds: int) -> list[Row]:
    """Every sampler on every space, blind and cold, and warm where a near shape of the same space is among them."""
    rows = []
    for space in spaces:
        near = nearest(space, spaces)
        starts: dict[str, tuple[Config, ...]] = {"blind": (), "cold": space.wanted}
        if near is not None:
            starts["warm"] = (*space.wanted, near.best.config)
        for how in samplings:
            rows += [_row(space, how, seeds, start, first, near) for start, first in starts.items()]
    return rows


def _row(space: Recorded, how: Sampling, seeds: int, start: str, first: Sequence[Config], near: Recorded | None) -> Row:
    counts = [trials_needed(space, how, seed, first) for seed in range(seeds)]
    lower, median, upper = statistics.quantiles(counts, n=4, method="inclusive") if seeds > 1 else counts * 3
    label = near.workload.label() if near is not None and start == "warm" else ""
    return Row(space.workload.op, space.kernel, space.workload.label(), len(space.trials), how.name, start, label, lower, median, upper)


def nearest(space: Recorded, others: Sequence[Recorded]) -> Recorded | None:
    """The nearest other shape of the same kernel's same space, dtype and device, by the distance that `tune` starts warm by."""
    same = [other for other in others if other is not space and _alike(other, space) and other.workload.key() != space.workload.key()]
    finite = [other for other in same if _apart(space, other) < float("inf")]
    return min(finite, key=lambda other: _apart(space, other), default=None)


def _alike(a: Recorded, b: Recorded) -> bool:
    return _identity(a) == _identity(b)


def _identity(one: Recorded) -> tuple[str, ...]:
    return one.workload.op, one.kernel, one.workload.dtype, one.device, one.space_hash


def _apart(a: Recorded, b: Recorded) -> float:
    return distance(a.workload.shapes, b.workload.shapes)


def trials_needed(space: Recorded, how: Sampling, seed: int, first: Sequence[Config] = ()) -> int:
    """Trials until one is within CLOSE of the best, `first` before all others. The budget is the whole space, so each arrives."""
    results, goal = space.results(), median_us(space.best) * CLOSE
    allowed = tuple({config_key(config): config for config in first if config_key(config) in results}.values())
    plan = KernelPlan(space.as_kernel(), allowed, None, len(results), 0, "", {})
    study = optuna.create_study(sampler=how.make(seed))

    def run(config: Config) -> Result:
        return results[config_key(config)]

    def arrived(finished: Sequence[Finished]) -> str:
        return "arrived" if any(median_us(one) <= goal for one in finished[-1:]) else ""

    found = search(study, plan, space.workload, run, lambda config, result, resumed: None, how, arrived, seed)
    return sum(one.tried for one in found.finished)
