"""`cache`: the choices that are stored, and whether they still hold."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from kernelyard.cli import cache_rules
from kernelyard.cli.cache_export import export
from kernelyard.cli.cache_import import import_command
from kernelyard.cli.cache_prune import prune
from kernelyard.cli.cache_state import origin, stale
from kernelyard.cli.cache_verify import verify
from kernelyard.cli.cache_why import why
from kernelyard.cli.misses import misses
from kernelyard.cli.output import config_text, emit, json_option, table

if TYPE_CHECKING:
    from kernelyard.store.records import Entry


@click.group()
def cache() -> None:
    """The stored choices: what was tuned, and what of it still holds."""


for command in (misses, verify, why, export, import_command, prune):
    cache.add_command(command)


@cache.command("list", epilog="Example: kernelyard cache list --op rmsnorm")
@click.option("--op", help="Only this op.")
@json_option
def cache_list(op: str | None, as_json: bool) -> int:
    """Every stored choice and rule of a bucket, with what it is tied to and whether it is stale here."""
    rows, rules = [_row(entry) for entry in _entries(op)], cache_rules.lines(op)
    if as_json:
        emit({"choices": rows, "rules": [{name: value for name, value in rule.items() if name != "evidence"} for rule in rules]})
    elif not rows and not rules:
        print("No choices are stored. `kernelyard tune rmsnorm` makes some.")
    else:
        columns = ("op", "workload", "device", "kernel", "config", "state")
        shown: list[tuple[object, ...]]
        shown = [(r["op"], r["workload"], r["device_key"], r["kernel"], config_text(r["config"]), r["stale"] or "valid") for r in rows]
        shown += map(cache_rules.row, rules)
        table("", columns, shown)
    return 0


@cache.command("show", epilog="Example: kernelyard cache show rmsnorm")
@click.argument("op")
@json_option
def cache_show(op: str, as_json: bool) -> int:
    """The stored choices and rules of OP with the evidence each was made on."""
    from kernelyard.errors import UnknownName

    entries, rules = _entries(op), cache_rules.lines(op)
    if not entries and not rules:
        raise UnknownName("tuned op", op, {entry.op for entry in _entries(None)} | {rule["op"] for rule in cache_rules.lines(None)})
    rows = [{**_row(entry), "created_at": entry.created_at, "evidence": dict(entry.evidence)} for entry in entries]
    if as_json:
        emit({"op": op, "choices": rows, "rules": rules})
        return 0
    for row in rows:
        print(f"{row['workload']} on {row['device_key']} ({row['mode']} time): {row['stale'] or 'valid'}")
        print(f"  run {row['run_id']} of {row['created_at']}{', ' + row['imported'] if row['imported'] else ''}")
        print(f"  {row['kernel']} ({config_text(row['config'])}): {row['reason']}")
        print("  evidence: " + json.dumps(row["evidence"], sort_keys=True, default=str))
    cache_rules.show_stored(rules)
    return 0


def _entries(op: str | None) -> list[Entry]:
    from kernelyard.store.choices import listed

    return listed(op)


def _row(entry: Entry) -> dict[str, Any]:
    """One entry for JSON; `stale` is empty where the choice may be used here and now."""
    choice = entry.choice
    return {
        "op": entry.op,
        "workload": entry.workload,
        "workload_key": entry.workload_key,
        "device_key": entry.device_key,
        "mode": entry.mode,
        "kernel": choice.kernel if choice else None,
        "config": dict(choice.config) if choice else {},
        "run_id": choice.run_id if choice else "",
        "reason": choice.reason if choice else "",
        "stale": stale(entry),
        "imported": origin(entry),
    }
