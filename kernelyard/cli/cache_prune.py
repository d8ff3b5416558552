"""`cache prune`: what is stale, unfinished or old goes; what serves stays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from kernelyard.cli import cache_state
from kernelyard.cli.cache_rules import name_of
from kernelyard.cli.output import config_text, emit, json_option

if TYPE_CHECKING:
    from kernelyard.store.records import Entry
    from kernelyard.store.rules import RuleEntry
    from kernelyard.store.trials import Study

NOUNS = {
    "choices": "choices",
    "rules": "rules of buckets",
    "measurements": "measurements",
    "runs": "runs without a result",
    "searches": "searches",
}
HOLDS = "it holds, and --serving asks for it"


@dataclass(frozen=True)
class Wanted:
    """What of the store was asked for, beyond what is stale or unfinished."""

    op: str | None
    serving: bool
    other_devices: bool


@click.command(epilog="Example: kernelyard cache prune --dry-run")
@click.option("--op", help="Only this op.")
@click.option("--older-than", "days", type=click.FloatRange(min=0, max=36500), default=30, show_default=True, metavar="DAYS",
              help="Age of measurements and of runs without a result.")  # fmt: skip
@click.option("--other-devices", is_flag=True, help="Also what was tuned on devices or drivers that are not here.")
@click.option("--serving", is_flag=True, help="Also choices and rules that hold, with all of their trials.")
@click.option("--dry-run", is_flag=True, help="Say what would go, and take nothing.")
@json_option
def prune(op: str | None, days: float, other_devices: bool, serving: bool, dry_run: bool, as_json: bool) -> int:
    """Take away stale choices and rules, searches that are stale or unfinished, and old measurements that nothing stored needs.

    A choice that holds stays unless --serving asks for it, with its run's measurements and every trial of its workload. Choices of
    other devices can't be judged here and stay without --other-devices. A run of the last day may
    be going on and stays. The file keeps its size; what is free in it is used again.
    """
    from kernelyard.errors import UnknownName
    from kernelyard.registry import registry
    from kernelyard.store import pruning, rules
    from kernelyard.store.choices import listed

    entries, all_rules, wanted = listed(), rules.listed(), Wanted(op, serving, other_devices)
    known = {one.op for one in entries} | {one.op for one in all_rules} | set(registry.current().ops)
    if op is not None and op not in known:
        raise UnknownName("op", op, known)
    judged = [(entry, cache_state.stale(entry)) for entry in entries if op in (None, entry.op)]
    gone = [(entry, why) for entry, why in judged if _goes(entry, why, wanted)]
    judged_rules = [(one, cache_state.rule_stale(one)) for one in all_rules if op in (None, one.op)]
    ruled = [(one, why) for one, why in judged_rules if _rule_goes(why, wanted)]
    asked = pruning.Asked([entry for entry, _ in gone], [one for one, _ in ruled], days, op)
    counts = pruning.counts(asked)
    searches = _searches([entry for entry, _ in judged if entry not in asked.gone], wanted)
    busy: list[str] = []
    if not dry_run:
        counts = pruning.remove(asked) if any(counts.values()) else counts
        busy = _remove(searches)
    counts = {**counts, "searches": len(searches) - len(busy)}
    if as_json:
        emit({"dry_run": dry_run, **counts, "busy": busy, "stale": [_told(*one) for one in gone],
              "stale_rules": [_rule_told(*one) for one in ruled]})  # fmt: skip
    else:
        _print(counts, gone, ruled, busy, dry_run)
    return 0


def _goes(entry: Entry, why: str, wanted: Wanted) -> bool:
    if entry.choice is not None and entry.device_key not in cache_state.here():
        return wanted.other_devices
    return bool(why) or wanted.serving


def _rule_goes(why: str, wanted: Wanted) -> bool:
    """As a choice. One of an op that is not installed goes, wherever it was made: nothing can be told of it any more."""
    return wanted.other_devices if why == cache_state.ELSEWHERE else bool(why) or wanted.serving


def _searches(staying: list[Entry], wanted: Wanted) -> list[Study]:
    """The searches to take: none of a workload whose choice stays because it holds."""
    from kernelyard.store.trials import studies

    kept = {(entry.op, entry.workload_key, entry.device_key) for entry in staying if entry.choice}
    return [one for one in studies() if wanted.op in (None, one.key["op"]) and _taken(one, kept, wanted)]


def _taken(study: Study, kept: set[tuple[str, str, str]], wanted: Wanted) -> bool:
    key = study.key
    if (key["op"], key["workload"], key["device"]) in kept:
        return False
    if key["device"] not in cache_state.here():
        return wanted.other_devices
    return study.finished == 0 or wanted.serving or _outdated(study)


def _outdated(study: Study) -> bool:
    """Whether `tune` would never go on with it: something that its times depend on has changed."""
    from kernelyard.measure.measured import PROTOCOL
    from kernelyard.registry import choices, registry
    from kernelyard.registry.spec import Choice

    key, everything = study.key, registry.current()
    if key["op"] not in everything.ops or key["protocol"] != PROTOCOL:
        return True
    hashes = (key["contract"], key["source"], key["space"], key["versions"])
    as_choice = Choice(key["op"], key["workload"], key["device"], key["mode"], key["kernel"], {}, *hashes)
    return not choices.holds(as_choice, everything.op(key["op"]), everything)


def _remove(searches: list[Study]) -> list[str]:
    """Takes them through Optuna, which knows its tables; the names of those that a process is searching now, which stay."""
    if not searches:
        return []
    import optuna

    from kernelyard.errors import StoreFailed
    from kernelyard.registry.spec import digest
    from kernelyard.store import trials
    from kernelyard.store.files import database_path, file_lock
    from kernelyard.tuner import locks, studies

    storage, busy = studies.open_storage(f"sqlite:///{database_path()}"), []
    for one in searches:
        key = one.key
        lock = locks.lock_path("tune", digest([key["op"], key["workload"], key["device"], key["mode"]]))
        try:
            with file_lock(lock, 0), studies.failures(str(database_path())):
                if one in trials.studies():
                    optuna.delete_study(study_name=one.name, storage=storage)
                else:  # another process went on with it since it was judged
                    busy.append(one.name)
        except StoreFailed as error:
            if not isinstance(error.__cause__, TimeoutError):
                raise
            busy.append(one.name)
    storage.engine.dispose()
    return busy


def _told(entry: Entry, why: str) -> dict[str, str]:
    return {"op": entry.op, "workload": entry.workload, "device_key": entry.device_key, "why": why}


def _rule_told(entry: RuleEntry, why: str) -> dict[str, str]:
    return {"op": entry.op, "device_key": entry.device_key, "why": why}


def _print(
    counts: dict[str, int], gone: list[tuple[Entry, str]], ruled: list[tuple[RuleEntry, str]], busy: list[str], dry_run: bool
) -> None:
    for entry, why in gone:
        kernel = f"{entry.choice.kernel} ({config_text(entry.choice.config)})" if entry.choice else "?"
        print(f"  {entry.op} {entry.workload} on {entry.device_key}: {kernel}, {why or HOLDS}")
    for one, why in ruled:
        print(f"  {one.op} {name_of(one.rule)} on {one.device_key}: {why or HOLDS}")
    told = ", ".join(f"{count} {NOUNS[name]}" for name, count in counts.items() if count) or "nothing"
    print(f"{'Would take' if dry_run else 'Taken'}: {told}.")
    for name in busy:
        print(f"  left, as it is being searched now: {name}")
