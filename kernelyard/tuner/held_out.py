"""What a bucket's rule loses on shapes that nothing was tuned on: what dispatch serves there against the best of a quick tune.

The quick tune is the tuner's own search, in memory: of a held-out shape no choice is stored, or its next figure would be a tuned one.
Compiled torch takes part where the portfolio has it: compiling it for each shape takes longer than all else.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import optuna

from kernelyard.registry import choices
from kernelyard.registry.dispatch import Selection, select
from kernelyard.registry.rule import Rule, form
from kernelyard.registry.spec import Config, Status, Workload
from kernelyard.store import rules as stored
from kernelyard.tuner import search as searching
from kernelyard.tuner.bench import Finished, Item, Result
from kernelyard.tuner.bucket import Bucket, Say
from kernelyard.tuner.hands import Here
from kernelyard.tuner.limits import FINALISTS
from kernelyard.tuner.pairs import Row, measured, pair_of, told, untuned
from kernelyard.tuner.plan import KernelPlan, plan
from kernelyard.tuner.portfolio import Pair
from kernelyard.tuner.session import Session


def held_out(session: Session[Here], bucket: Bucket, workloads: Sequence[Workload], say: Say) -> Bucket:
    """The bucket with its losses on workloads of its forms that it was not made of, stored beside what it was made on."""
    made_of = {one["workload"] for one in bucket.evidence["workloads"]}
    forms = {one.form for one in bucket.rule.measured}
    unseen = [one for one in workloads if one.label() not in made_of and form(one) in forms]
    rows = []
    for i, workload in enumerate(unseen, start=1):
        say(f"[{i}/{len(unseen)}] {session.asked.op.name} {workload.label()}, held out: a quick tune, then against what the rule serves")
        rows.append(_loss(session, bucket, workload))
    evidence = {**bucket.evidence, "held_out": rows}
    stored.save(bucket.rule, evidence)
    return Bucket(bucket.rule, evidence, bucket.kept, bucket.from_cache)


def _loss(session: Session[Here], bucket: Bucket, workload: Workload) -> dict[str, Any]:
    op = session.asked.op
    with choices.none():
        selection = select(op, workload)
    served, without = pair_of(selection.kernel.name, selection.config), untuned(op, workload)
    portfolio = [pair_of(pair.kernel, pair.config) for pair in bucket.rule.pairs]
    plain = pair_of(op.fallback, session.asked.registry.kernel(op.name, op.fallback).space.default_for(workload))
    row = measured(session, workload, [served, without, plain, *portfolio, *_best(session, workload)], "held_out")
    return {
        "workload": workload.label(), "served_by": told(served), "by_rule": selection.by_rule, "reason": _reason(selection, bucket.rule),
        "loss": _loss_of(row, served), "untuned_loss": _loss_of(row, without), "best": told(row.best),
        "best_us": round(row.timings[row.best].median_us, 5), "noisy": row.noisy(served),
    }  # fmt: skip


def _loss_of(row: Row, pair: Pair) -> float | None:
    """None where the pair was wrong or could not be timed there."""
    return round(row.loss(pair), 5) if pair in row.ratios else None


def _reason(selection: Selection, rule: Rule) -> str:
    """Why that one serves; where the rule does not speak, why not."""
    told = [one for one in selection.rejected if rule.name in (one.kernel, one.reason.partition(",")[0])]
    return selection.reason if selection.by_rule or not told else f"{told[0].kernel}: {told[0].reason}"


def _best(session: Session[Here], workload: Workload) -> list[Pair]:
    """The best few by trials, the tuner's own search over every kernel that was asked for."""
    asked = session.asked
    tuned = plan(asked.registry, asked.op, workload, asked.trials, asked.kernels)
    found = [(search.kernel.name, one) for search in tuned.searches for one in _searched(session, search, workload)]
    right = [(kernel, one) for kernel, one in found if one.result.status is Status.OK and one.result.timing is not None]
    right.sort(key=lambda pair: pair[1].result.timing.median_us if pair[1].result.timing else float("inf"))
    return [pair_of(kernel, one.config) for kernel, one in right[:FINALISTS]]


def _searched(session: Session[Here], search: KernelPlan, workload: Workload) -> list[Finished]:
    asked = session.asked

    def run(config: Config) -> Result:
        return session.hands.trial(Item(search.kernel.name, config, workload))

    def ended(config: Config, result: Result, resumed: bool) -> None:
        """Nobody counts these."""

    study = optuna.create_study(sampler=session.sampling.make(0))
    return searching.search(study, search, workload, run, ended, session.sampling, asked.ending.started()).finished
