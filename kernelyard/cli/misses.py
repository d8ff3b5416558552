"""`cache misses`: the workloads that ran here without a stored choice, and what tunes them."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

import click

from kernelyard.cli.output import emit, json_option, table

if TYPE_CHECKING:
    from kernelyard.store.misses import Kept


@click.command(epilog="Example: kernelyard cache misses --op rmsnorm")
@click.option("--op", help="Only this op.")
@json_option
def misses(op: str | None, as_json: bool) -> int:
    """Calls that no stored choice served, of processes that have ended, those met by most processes first.

    A miss is `untuned` (no choice is stored), `stale` (one is, and can't be used) or `fallback` (no choice, and the reference
    served). What has been tuned since is left out. The 1000 seen last are kept; a process that is killed leaves none.
    """
    from kernelyard.store.misses import listed

    every = [one for one in listed() if op in (None, one.miss.op)]
    kept = [one for one in every if not _tuned_since(one)]
    since = len(every) - len(kept)
    if as_json:
        emit({"misses": [_row(one) for one in kept], "tuned_since": since})
        return 0
    if kept:
        columns = ("op", "workload", "device", "missed", "served", "because", "processes >", "last seen")
        table("", columns, [_cells(one) for one in kept])
        print("\n".join(commands(kept)))
    else:
        print("No misses are kept: no call of a process that has ended ran without a stored choice.")
    if since:
        print(f"{since} more {'was' if since == 1 else 'were'} tuned since.")
    return 0


def commands(kept: list[Kept]) -> list[str]:
    """One command for all shapes of an op, dtype and device; and how to come by those that no shape in words says."""
    grouped: dict[tuple[str, str, str], list[str]] = {}
    for one in kept:
        if one.miss.run:
            _, _, op, _, shape, _, dtype, _, device = shlex.split(one.miss.run)
            grouped.setdefault((op, dtype, device), []).append(shape)
    found = [
        f"kernelyard tune {op} {' '.join(f'--shape {shape}' for shape in shapes)} --dtype {dtype} --device {device}"
        for (op, dtype, device), shapes in grouped.items()
    ]
    untold = sum(not one.miss.run for one in kept)
    return [*found, *([f"{untold} have strides that --shape can't say: run the model inside kernelyard.capture(NAME)."] if untold else [])]


def _tuned_since(one: Kept) -> bool:
    from kernelyard.registry import choices, registry
    from kernelyard.store.choices import find

    everything = registry.current()
    op = everything.ops.get(one.miss.op)
    choice = find(one.miss.op, one.miss.workload_key, one.miss.device_key)
    return op is not None and choice is not None and bool(choices.holds(choice, op, everything))


def _row(one: Kept) -> dict[str, Any]:
    from dataclasses import asdict

    return {**asdict(one.miss), "processes": one.processes, "last_seen": one.last_seen}


def _cells(one: Kept) -> tuple[object, ...]:
    miss = one.miss
    return miss.op, miss.workload, miss.device_key, miss.missed, miss.kernel, miss.reason, one.processes, one.last_seen
