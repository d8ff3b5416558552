"""`tune --bucket`: of a tuned matrix, the fewest pairs that keep each of its workloads near its own best, and a rule for other shapes.

Who is measured on every workload is found from the trials; what is decided rests on one more interleaved measurement of each workload,
with all of them in it. Whether the rule is worth having is found on the same figures: each workload is left out in turn, portfolio and
rule are made of the others, and what they would have served there is compared with what serves without any. Nothing held out is looked at.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kernelyard.errors import masked
from kernelyard.measure.measured import PROTOCOL
from kernelyard.registry import rules
from kernelyard.registry.rule import Measured, Rule, form
from kernelyard.registry.spec import Choice, Workload, digest
from kernelyard.store import rules as stored
from kernelyard.tuner import studies
from kernelyard.tuner.answers import Asked
from kernelyard.tuner.hands import Here
from kernelyard.tuner.keeping import MODE, choice_of
from kernelyard.tuner.pairs import Row, config_of, measured, pair_of, told, untuned
from kernelyard.tuner.plan import plan
from kernelyard.tuner.portfolio import Pair, Portfolio, portfolio, shortlist
from kernelyard.tuner.report import TuneReport
from kernelyard.tuner.session import Session

Say = Callable[[str], None]


@dataclass(frozen=True)
class Bucket:
    """A rule and what it was made on. `kept`: stored; one that is slower than what serves without a rule is not."""

    rule: Rule
    evidence: Mapping[str, Any]
    kept: bool = True
    from_cache: bool = False

    def to_json(self) -> dict[str, Any]:
        """What `tune --bucket --json` prints under `bucket`."""
        pairs = [{"kernel": pair.kernel, "config": dict(pair.config)} for pair in self.rule.pairs]
        about = {"percent": self.rule.percent, "run_id": self.rule.run_id, "kept": self.kept, "from_cache": self.from_cache}
        return {**about, "pairs": pairs, **self.evidence}


def from_store(asked: Asked, report: TuneReport, percent: float) -> Bucket | None:
    """The stored rule, where it holds and was made of these very choices at this percentage."""
    for entry in () if asked.force else stored.listed(asked.op.name):
        rule = entry.rule
        if rule is None or (rule.device_key, rule.mode, rule.percent) != (asked.device.key(), MODE, percent):
            continue
        same = (entry.evidence.get("choices"), entry.evidence.get("protocol")) == (_digest(report), PROTOCOL)
        if same and rules.holds(rule, asked.op, asked.registry):
            return Bucket(rule, entry.evidence, from_cache=True)
    return None


def make(session: Session[Here], report: TuneReport, percent: float, say: Say) -> Bucket:
    """Measure, choose, and keep the rule unless it is slower than what serves without one."""
    asked = session.asked
    workloads = [one.workload for one in report.workloads]
    winners = [pair_of(one.choice.kernel, one.choice.config) for one in report.workloads]
    trials = {one.key(): _trials(session, one) for one in workloads}
    pairs = shortlist(trials, winners, percent)
    rows = []
    for i, workload in enumerate(workloads, start=1):
        say(f"[{i}/{len(workloads)}] {asked.op.name} {workload.label()}: {len(pairs)} pairs against each other")
        rows.append(measured(session, workload, [*pairs, untuned(asked.op, workload)], "bucket"))
    chosen = portfolio(_table(rows), percent)
    rule = rule_of(asked, rows, chosen, percent)
    left_out = leave_each_out(asked, rows, percent)
    evidence = {
        "choices": _digest(report), "protocol": PROTOCOL, "exact": chosen.exact, "considered": len(pairs),
        "workloads": [_evidence(asked, row, chosen) for row in rows], "left_out": left_out,
    }  # fmt: skip
    bucket = Bucket(rule, evidence, kept=is_worth(left_out))
    if bucket.kept:
        stored.save(rule, evidence)
    else:
        stored.remove(rule)
    return bucket


def rule_of(asked: Asked, rows: Sequence[Row], chosen: Portfolio, percent: float) -> Rule:
    """The rule of a portfolio: each measured workload with the pair that serves it."""
    name, content = asked.matrix_identity
    served = [(row.workload, *chosen.serves[row.workload.key()]) for row in rows]
    pairs = tuple(_choice(asked, pair, next(workload for workload, mine, _ in served if mine == pair)) for pair in chosen.pairs)
    measured_ = tuple(Measured(form(w), w.dims, w.label(), chosen.pairs.index(pair), loss) for w, pair, loss in served)
    return Rule(asked.op.name, asked.device.key(), MODE, percent, name, content, pairs, measured_, asked.run_id)


def leave_each_out(asked: Asked, rows: Sequence[Row], percent: float) -> list[dict[str, Any]]:
    """What the rule of all other workloads serves on each, and what serves without a rule: each over the best measured there.

    A workload at the edge is met from outside here, where the real rule does not speak: so this is the harder case.
    """
    found = []
    for row in rows:
        others = [one for one in rows if one is not row]
        if not others:
            continue
        rule = rule_of(asked, others, portfolio(_table(others), percent), percent)
        steps = (pair_of(step.pair.kernel, step.pair.config) for step in rule.steps(row.workload))
        pair = next((pair for pair in steps if pair in row.ratios), None)
        if pair is not None:
            without = _untuned_loss(asked, row)
            found.append({"workload": row.workload.label(), **told(pair), "loss": _round(row.loss(pair)), "untuned_loss": without})
    return found


def is_worth(left_out: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the rule was no slower than what serves without it, over the workloads left out: the geometric mean of both.

    Where what serves untuned is wrong or can't be timed on a workload, that one says nothing.
    """
    both = [(one["loss"], one["untuned_loss"]) for one in left_out if one["untuned_loss"] is not None]
    return sum(math.log1p(loss) - math.log1p(without) for loss, without in both) <= 0


def _trials(session: Session[Here], workload: Workload) -> dict[Pair, float]:
    """The time of every right trial of a workload, of this run or an earlier one."""
    asked, sampling, found = session.asked, session.sampling, {}
    tuned = plan(asked.registry, asked.op, workload, asked.trials, asked.kernels)
    with studies.failures(masked(asked.storage or str(session.store.path))):
        for search in tuned.searches:
            study = studies.open_study(session.trials, search.kernel, session.key(search, tuned), sampling.make(0), anew=False)
            for one in studies.recover(study, studies.Coding(search.kernel.space, sampling.places)):
                if one.result.timing is not None and one.result.timing.median_us > 0:
                    found[pair_of(search.kernel.name, one.config)] = one.result.timing.median_us
    return found


def _table(rows: Sequence[Row]) -> dict[str, Mapping[Pair, float]]:
    return {row.workload.key(): row.ratios for row in rows}


def _choice(asked: Asked, pair: Pair, workload: Workload) -> Choice:
    return choice_of(asked, asked.registry.kernel(asked.op.name, pair[0]), config_of(pair), workload)


def _evidence(asked: Asked, row: Row, chosen: Portfolio) -> dict[str, Any]:
    pair, loss = chosen.serves[row.workload.key()]
    times = [
        {**told(one), "us": round(timing.median_us, 5), "loss": _round(row.loss(one)), "noisy": timing.noisy}
        for one, timing in sorted(row.timings.items(), key=lambda item: row.ratios[item[0]])
    ]
    names = {"workload": row.workload.label(), "served_by": told(pair), "loss": _round(loss), "best": told(row.best)}
    return {**names, "untuned_loss": _untuned_loss(asked, row), "noisy": row.noisy(pair), "times": times}


def _untuned_loss(asked: Asked, row: Row) -> float | None:
    pair = untuned(asked.op, row.workload)
    return _round(row.loss(pair)) if pair in row.ratios else None


def _digest(report: TuneReport) -> str:
    """Of the choices that a bucket is made of; another choice, or one tuned anew, makes another bucket."""
    return digest([[one.workload.key(), one.choice.kernel, dict(one.choice.config), one.choice.run_id] for one in report.workloads])


def _round(loss: float) -> float:
    return round(loss, 5)
