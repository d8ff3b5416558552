"""How `cache` tells of the rules that `tune --bucket` stored: beside choices, of a workload, and what each was measured to lose."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeGuard

from kernelyard.cli.cache_state import rule_stale
from kernelyard.cli.output import config_text

if TYPE_CHECKING:
    from kernelyard.registry.dispatch import Selection
    from kernelyard.registry.rule import Rule
    from kernelyard.registry.spec import Workload
    from kernelyard.store.rules import RuleEntry


def lines(op: str | None) -> list[dict[str, Any]]:
    """The stored rules, all or those of an op, as JSON; `stale` is empty where a rule may be used here and now."""
    from kernelyard.store import rules

    return [
        {
            "op": entry.op, "name": name_of(entry.rule), "device_key": entry.device_key, "mode": entry.mode,
            "created_at": entry.created_at, "stale": rule_stale(entry),
            "percent": entry.rule.percent if entry.rule else None, "matrix": entry.rule.matrix_name if entry.rule else "",
            "run_id": entry.rule.run_id if entry.rule else "",
            "pairs": [{"kernel": p.kernel, "config": dict(p.config)} for p in entry.rule.pairs] if entry.rule else [],
            "measured": [
                {"workload": one.label, "pair": one.pair, "loss": one.loss} for one in (entry.rule.measured if entry.rule else ())
            ],
            "evidence": dict(entry.evidence),
        }
        for entry in rules.listed(op)
    ]  # fmt: skip


def row(rule: Mapping[str, Any]) -> tuple[str, ...]:
    """A stored rule among the choices of `cache list`: no one workload, and maybe more than one kernel."""
    kernels = " ".join(dict.fromkeys(pair["kernel"] for pair in rule["pairs"])) or "?"
    count = len(rule["pairs"])
    return rule["op"], rule["name"], rule["device_key"], kernels, f"{count} pair{'s' * (count != 1)}", rule["stale"] or "valid"


def name_of(rule: Rule | None) -> str:
    """How people are told of a rule, one that can't be read too."""
    return rule.name if rule else "rule of a bucket"


def show_stored(rules: Sequence[Mapping[str, Any]]) -> None:
    """The stored rules for people."""
    for rule in rules:
        print(f"{rule['name']} on {rule['device_key']}: {rule['stale'] or 'valid'}")
        print(f"  run {rule['run_id']} of {rule['created_at']}, matrix {rule['matrix']}")
        for place, pair in enumerate(rule["pairs"]):
            served = [f"{one['workload']} (+{100 * one['loss']:.1f}%)" for one in rule["measured"] if one["pair"] == place]
            print(f"  {pair['kernel']} ({config_text(pair['config'])}): near {', '.join(served)}")
        if left_out := _rows(rule["evidence"], "left_out"):
            print(f"  each workload left out in turn: {summary(left_out)}")
        if held_out := _rows(rule["evidence"], "held_out"):
            print(f"  held out: {summary([row for row in held_out if row.get('by_rule')])}")


def _rows(evidence: Mapping[str, Any], of: str) -> list[Mapping[str, Any]]:
    """What evidence tells of each workload. A rule serves without it, so damage here is shown as nothing."""
    found = evidence.get(of)
    return [row for row in found if isinstance(row, Mapping)] if isinstance(found, list) else []


def of_workload(rules: Sequence[RuleEntry], workload: Workload, selection: Selection) -> list[dict[str, Any]]:
    """Of each rule of a workload's op, whether it serves it, and why not."""
    return [{"name": name_of(one.rule), "device_key": one.device_key, **_use(one, workload, selection)} for one in rules]


def _use(entry: RuleEntry, workload: Workload, selection: Selection) -> dict[str, Any]:
    reason = rule_stale(entry) or (entry.rule.covers(workload).reason if entry.rule else "")
    if entry.device_key.partition("/")[0] != workload.device:
        reason = reason or f"of {entry.device_key.partition('/')[0]}"
    if not reason and not selection.by_rule:
        reason = f"before it comes {selection.reason}"
    return {"serves": not reason, "reason": reason}


def summary(rows: Sequence[Mapping[str, Any]]) -> str:
    """Geometric mean and worst of what the rule loses, and of what serves untuned."""
    pairs = [(row.get("loss"), row.get("untuned_loss")) for row in rows]
    both = [(mine, other) for mine, other in pairs if _is_loss(mine) and _is_loss(other)]
    if not both:
        return "no workload that the rule speaks for"
    mine, without = zip(*both, strict=True)
    return f"the rule loses {_mean(mine)}, untuned kernels {_mean(without)} ({len(both)} workload{'s' * (len(both) > 1)})"


def _mean(losses: Sequence[float]) -> str:
    mean = math.expm1(sum(map(math.log1p, losses)) / len(losses))
    return f"{100 * mean:.1f}% in the mean, {100 * max(losses):.1f}% at worst"


def _is_loss(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and value > -1
