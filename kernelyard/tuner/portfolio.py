"""The fewest pairs of kernel and config that keep every workload within some percent of its own best: a set cover, on measured times.

Source: Hochgraf and Pai, "A Few Fit Most: Improving Performance Portability of SGEMM on GPUs using Multi-Versioning" (arXiv 2507.15277,
2025): few variants of a kernel come near the best of each input; and Lawson, "Performance portability through machine learning guided
kernel selection in SYCL libraries" (arXiv 2008.13145, 2020): a simple rule picks among them for inputs not seen. Where walking through
all covers takes too long: Chvatal, "A Greedy Heuristic for the Set-Covering Problem" (Mathematics of Operations Research 4(3), 1979),
whose cover has at most 1 + 1/2 + ... + 1/d times the fewest, d being the workloads that one pair covers at most.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

Pair = tuple[str, str]
"""A kernel and the key of its config."""
Table = Mapping[str, Mapping[Pair, float]]
"""Workload -> pair -> time. A pair counts for the workloads on which it has a time, and for no other."""

MOST_COVERS = 200_000
"""Sets of pairs that are walked through for the fewest: about a second. 25 pairs have 68 thousand sets of at most 5."""

MOST_COVERING = 4
"""Pairs that go to the last measurement because they were near the best most often, beside the winners and the cover by trials."""


@dataclass(frozen=True)
class Portfolio:
    """The pairs, the one that serves each workload with its loss (0.03: 3% above the best there), and whether fewer can't do."""

    pairs: tuple[Pair, ...]
    serves: Mapping[str, tuple[Pair, float]]
    exact: bool


def losses(times: Mapping[Pair, float]) -> dict[Pair, float]:
    """By how much each pair is above the best of one workload, as a fraction."""
    best = min(times.values())
    return {pair: time / best - 1 for pair, time in times.items()}


def portfolio(table: Table, percent: float) -> Portfolio:
    """The fewest pairs; of as few, those that lose least in sum. Each workload is served by the fastest of them there."""
    lost = {workload: losses(times) for workload, times in table.items()}
    near = {workload: {pair for pair, loss in row.items() if loss <= percent / 100} for workload, row in lost.items()}
    pairs = sorted({pair for row in near.values() for pair in row})
    few = _greedy(near, pairs)
    exact = sum(math.comb(len(pairs), size) for size in range(1, len(few) + 1)) <= MOST_COVERS
    if exact:
        few = _fewest(near, pairs, len(few), lost)
    serves = {workload: min(((pair, row[pair]) for pair in few if pair in row), key=lambda one: one[1]) for workload, row in lost.items()}
    served = [pair for pair, _ in serves.values()]
    used = sorted(set(served), key=lambda pair: (-served.count(pair), pair))  # by name among equals: a set's order is another in each run
    return Portfolio(tuple(used), serves, exact)


def _greedy(near: Mapping[str, Collection[Pair]], pairs: Sequence[Pair]) -> tuple[Pair, ...]:
    """Again and again the pair that covers most of what is left."""
    left, chosen = set(near), list[Pair]()
    while left:
        best = max(pairs, key=lambda pair: sum(pair in near[workload] for workload in left))
        chosen.append(best)
        left -= {workload for workload in left if best in near[workload]}
    return tuple(chosen)


def _fewest(
    near: Mapping[str, Collection[Pair]], pairs: Sequence[Pair], most: int, lost: Mapping[str, Mapping[Pair, float]]
) -> tuple[Pair, ...]:
    """The best of the smallest covers, found by trying every set of 1 pair, of 2, and so on; `most` is known to be enough."""
    for size in range(1, most + 1):
        covers = [few for few in combinations(pairs, size) if all(any(pair in row for pair in few) for row in near.values())]
        if covers:
            return min(covers, key=lambda few: _lost(few, lost))
    raise AssertionError("a cover of that size was given")


def _lost(few: Iterable[Pair], lost: Mapping[str, Mapping[Pair, float]]) -> float:
    few = tuple(few)
    return sum(min(row[pair] for pair in few if pair in row) for row in lost.values())


def shortlist(trials: Table, chosen: Iterable[Pair], percent: float) -> tuple[Pair, ...]:
    """Who is worth measuring on every workload: each winner, the cover that trials suggest, and whoever was near the best most often.

    Trials are short, one after another: they say whom to look at, and decide nothing.
    """
    known = {workload: times for workload, times in trials.items() if times}
    suggested = portfolio(known, percent).pairs if known else ()
    near = [pair for times in known.values() for pair, loss in losses(times).items() if loss <= percent / 100]
    often = sorted(set(near), key=lambda pair: (-near.count(pair), pair))[:MOST_COVERING]
    return tuple(dict.fromkeys([*chosen, *suggested, *often]))
