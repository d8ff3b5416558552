"""The evidence of a choice: what finals and trials gave, as JSON that the store keeps and the report prints."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from kernelyard.measure.roofline import Standing, ceilings, standing
from kernelyard.registry.op import Op
from kernelyard.registry.spec import Status, Timing
from kernelyard.tuner.answers import torch_version
from kernelyard.tuner.bench import Finished, Times
from kernelyard.tuner.finals import Finalist, Outcome
from kernelyard.tuner.plan import Plan
from kernelyard.tuner.report import COUNTED
from kernelyard.tuner.search import Searched

ROUND = 5
"""Digits after the point of a microsecond: 10 ps, below any clock here."""


def evidence(op: Op, plan: Plan, finished: Mapping[str, Sequence[Finished]], outcome: Outcome) -> dict[str, Any]:
    """Everything a reader of the choice can ask for; nulls where a time was not taken."""
    winner = outcome.winner
    compiled = [f for f in outcome.finalists if f.reference and f.name.startswith("compile.") and outcome.timing(f)]
    compiled.sort(key=lambda f: _median(outcome, f) or float("inf"))
    plain = {f.name: f for f in outcome.finalists if f.name in (op.baseline, op.fallback)}
    eager = plain.get(op.baseline) or plain.get(op.fallback)
    fastest_compiled = compiled[0] if compiled else None
    timing = outcome.timing(winner) if winner else None
    copy_us = outcome.device.copy_us if outcome.device else None
    workload = plan.workload
    stands = standing(op.cost(workload), timing, workload.dtype, ceilings(workload.device), copy_us) if timing else None
    return {
        "device_time_us": _interval(timing),
        "call_time_us": _interval(_call(outcome.call, winner)),
        "eager_us": _median(outcome, eager),
        "compile_us": _median(outcome, fastest_compiled),
        "speedup_vs_eager": _speedup(outcome, eager, winner),
        "speedup_vs_compile": _speedup(outcome, fastest_compiled, winner),
        "percent_of_ceiling": _percent(stands),
        "ceiling_note": stands.above if stands else "",
        "baselines": {f.name: _both(outcome, f) for f in outcome.finalists if f.reference},
        "trials": counts(plan, (one for trials in finished.values() for one in trials)),
        "finals": [_finalist(outcome, f) for f in outcome.finalists],
        "cold_build_s": outcome.results[winner.item.id].build_s if winner else None,
        "clock": timing.clock if timing else None,
        "noisy": timing.noisy if timing else "",
        "cache": outcome.device.notes.get(winner.item.id, "") if outcome.device and winner else "",
        "protocol": outcome.device.protocol if outcome.device else None,
        "copy_us": copy_us,
        "skipped": dict(plan.skipped),
        "torch": torch_version(),
    }


def searches(plan: Plan, found: Mapping[str, Searched], sampler: str) -> dict[str, Any]:
    """How hard each kernel was searched. One that a limit ended early counts as so many trials as it had, and never as whole."""
    rows = {}
    for one in plan.searches:
        stopped = found[one.kernel.name].stopped
        tried = sum(trial.tried for trial in found[one.kernel.name].finished)
        row = {"digest": one.digest, "budget": tried if stopped else one.budget, "whole": one.whole is not None and not stopped}
        rows[one.kernel.name] = {**row, "sampler": "whole" if one.whole is not None else sampler, "stopped": stopped}
    return rows


def counts(plan: Plan, finished: Iterable[Finished]) -> dict[str, int]:
    """Trials by status; 'pruned' are the configs that constraints forbid, none of them built."""
    statuses = [one.result.status for one in finished]
    found = {str(status): statuses.count(status) for status in COUNTED}
    found[Status.PRUNED] += sum(search.excluded for search in plan.searches)
    return found


def _finalist(outcome: Outcome, finalist: Finalist) -> dict[str, Any]:
    result, timing = outcome.results[finalist.item.id], outcome.timing(finalist)
    over = outcome.ratio(finalist, outcome.winner) if outcome.winner else None
    return {
        "kernel": finalist.name,
        "config": dict(finalist.item.config),
        "status": str(result.status),
        "reason": result.reason,
        "device_time_us": _interval(timing),
        "call_time_us": _call_median(outcome, finalist),
        "ratio_to_choice": asdict(over) if over else None,
        "build_s": result.build_s,
        "noisy": timing.noisy if timing else "",
    }


def _percent(stands: Standing | None) -> float | None:
    return round(stands.percent, 1) if stands is not None and stands.percent is not None else None


def _interval(timing: Timing | None) -> dict[str, float] | None:
    if timing is None:
        return None
    return {"median": round(timing.median_us, ROUND), "low": round(timing.low_us, ROUND), "high": round(timing.high_us, ROUND)}


def _median(outcome: Outcome, finalist: Finalist | None) -> float | None:
    timing = outcome.timing(finalist) if finalist is not None else None
    return round(timing.median_us, ROUND) if timing is not None else None


def _call(call: Times | None, finalist: Finalist | None) -> Timing | None:
    return call.timings.get(finalist.item.id) if call is not None and finalist is not None else None


def _call_median(outcome: Outcome, finalist: Finalist) -> float | None:
    timing = _call(outcome.call, finalist)
    return round(timing.median_us, ROUND) if timing is not None else None


def _both(outcome: Outcome, finalist: Finalist) -> dict[str, float | None]:
    return {"device_us": _median(outcome, finalist), "call_us": _call_median(outcome, finalist)}


def _speedup(outcome: Outcome, over: Finalist | None, winner: Finalist | None) -> float | None:
    """Times of the two by their medians' ratio, paired by batch; 1.0 for the winner itself."""
    if over is None or winner is None:
        return None
    ratio = outcome.ratio(over, winner)
    return round(ratio.median, 4) if ratio is not None else None
