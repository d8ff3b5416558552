"""`cache why`: what serves a workload because of which stored choice, and what changed for each choice that can't."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from kernelyard.cli import cache_rules
from kernelyard.cli.cache_state import changes, origin
from kernelyard.cli.output import config_text, device_option, dtype_option, emit, json_option, matrix_option, microseconds, shape_option

if TYPE_CHECKING:
    from kernelyard.registry.dispatch import Selection
    from kernelyard.registry.spec import Workload
    from kernelyard.store.records import Entry
    from kernelyard.store.rules import RuleEntry


@click.command(epilog="Example: kernelyard cache why rmsnorm --shape 16x4096 --dtype bf16 --kernel triton.row")
@click.argument("op")
@click.option("--kernel", help="Also why this kernel serves or not.")
@shape_option("16x4096")
@dtype_option
@matrix_option
@device_option
@json_option
def why(
    op: str, kernel: str | None, shapes: tuple[str, ...], dtype: str | None, matrix: str | None, device: str | None, as_json: bool
) -> int:
    """Why a stored choice or a bucket's rule serves a workload of OP, or which part of its key has changed.

    Looks at the choices of every device. Exit code 1 where no stored choice serves one of the workloads.
    """
    from kernelyard.cli.workloads import matrices
    from kernelyard.registry import registry
    from kernelyard.registry.machine import check_device
    from kernelyard.store import rules
    from kernelyard.store.choices import listed

    device, everything = check_device(device), registry.current()
    if kernel is not None:
        everything.kernel(op, kernel)
    points = matrices(everything, [op], device=device, matrix=matrix, shapes=shapes, dtype=dtype, default="performance")[0].points
    entries, stored_rules = listed(op), rules.listed(op)
    rows = [_row(everything.op(op).workload(point, device), kernel, entries, stored_rules) for point in points]
    if as_json:
        emit({"op": op, "device": device, "workloads": rows})
    else:
        print("\n".join(line for row in rows for line in _lines(row)))
    return 0 if all(row["chosen"] for row in rows) else 1


def _row(workload: Workload, kernel: str | None, entries: Sequence[Entry], rules: Sequence[RuleEntry]) -> dict[str, Any]:
    from kernelyard.registry.dispatch import select
    from kernelyard.registry.registry import current

    selection = select(current().op(workload.op), workload)
    found = [entry for entry in entries if _same_work(entry.workload_key, workload.key())]
    told = [_told(entry, selection) for entry in found]
    row = {
        "workload": workload.label(),
        "workload_key": workload.key(),
        "serves": {"kernel": selection.kernel.name, "config": dict(selection.config), "reason": selection.reason},
        "chosen": any(one["serves"] for one in told),
        "choices": told,
        "rules": cache_rules.of_workload(rules, workload, selection),
    }
    return row if kernel is None else {**row, "kernel": kernel, "kernel_reason": _of_kernel(kernel, selection, found, workload)}


def _same_work(key: str, asked: str) -> bool:
    """Whether two workloads differ in nothing but the type of device."""
    return key.rpartition("@")[0] == asked.rpartition("@")[0]


def _told(entry: Entry, selection: Selection) -> dict[str, Any]:
    choice, found = entry.choice, changes(entry)
    mine = choice is not None and choice.workload_key == selection.workload.key() and not found
    passed = next((r.reason for r in selection.rejected if r.reason.startswith("stored choice, ")), "") if mine else ""
    selected = (selection.kernel.name, dict(selection.config))
    serves = choice is not None and mine and not passed and selected == (choice.kernel, dict(choice.config))
    return {
        "device_key": entry.device_key,
        "mode": entry.mode,
        "kernel": choice.kernel if choice else None,
        "config": dict(choice.config) if choice else {},
        "run_id": choice.run_id if choice else "",
        "created_at": entry.created_at,
        "imported": origin(entry),
        "serves": serves,
        "changes": [{"part": one.part, "then": one.then, "now": one.now, "text": one.text} for one in found],
        "passed_over": passed.removeprefix("stored choice, ") or ("" if serves or not mine else selection.reason),
        "anew": _anew(entry) if mine else [],
    }


def _anew(entry: Entry) -> list[str]:
    """Why `tune` would measure a workload again whose choice still serves: its times are not comparable with those of today."""
    from kernelyard.measure.measured import PROTOCOL
    from kernelyard.tuner.answers import torch_version

    parts = {"protocol": ("the protocol of its times", PROTOCOL), "torch": ("the torch of its references", torch_version())}
    pairs = ((what, entry.evidence.get(name), now) for name, (what, now) in parts.items())
    return [f"{what} was {then or 'not told'}, is {now}" for what, then, now in pairs if then != now]


def _of_kernel(kernel: str, selection: Selection, found: list[Entry], workload: Workload) -> str:
    """Why one kernel serves or not: dispatch's own word, what the choice's evidence says of it, or that nothing does."""
    if selection.kernel.name == kernel:
        return f"it serves: {selection.reason}"
    if said := next((rejected.reason for rejected in selection.rejected if rejected.kernel == kernel), ""):
        return said
    evidence = next((entry.evidence for entry in found if entry.workload_key == workload.key() and not changes(entry)), {})
    finals = [one for one in evidence.get("finals", []) if one.get("kernel") == kernel and one.get("device_time_us")]
    if finals:
        best = min(finals, key=lambda one: float(one["device_time_us"]["median"]))
        chosen = evidence["device_time_us"]["median"]
        return f"it lost in finals: {microseconds(best['device_time_us']['median'])}, the choice {microseconds(chosen)}"
    if kernel in evidence.get("skipped", {}):
        return f"it was not tuned: {evidence['skipped'][kernel]}"
    if kernel in evidence.get("searched", {}):
        return "it was searched, and none of its configs came into finals"
    return f"{selection.kernel.name} comes before it: {selection.reason}"


def _lines(row: dict[str, Any]) -> list[str]:
    serves = row["serves"]
    lines = [f"{row['workload']}: {serves['kernel']} ({config_text(serves['config'])}) serves: {serves['reason']}"]
    if not row["choices"]:
        lines.append("  no choice is stored for it, of any device")
    for one in row["choices"]:
        state = "serves" if one["serves"] else "can't be used" if one["changes"] else f"is passed over: {one['passed_over']}"
        made = f"run {one['run_id'] or '-'} of {one['created_at']}" + (f", {one['imported']}" if one["imported"] else "")
        lines.append(f"  the choice on {one['device_key']} ({one['mode']} time) {state}")
        lines.append(f"    {one['kernel']} ({config_text(one['config'])}), {made}")
        lines += [f"    {change['part']}: {change['text']}{_hashes(change)}" for change in one["changes"]]
        lines += [f"    tune would measure it anew: {reason}" for reason in one["anew"]]
    lines += [f"  the {one['name']} on {one['device_key']} {_ruled(one)}" for one in row["rules"]]
    return lines + ([f"  {row['kernel']}: {row['kernel_reason']}"] if "kernel" in row else [])


def _ruled(one: dict[str, Any]) -> str:
    return "serves" if one["serves"] else f"does not serve: {one['reason']}"


def _hashes(change: dict[str, str]) -> str:
    """The two values, where the text does not have them already."""
    return f" ({change['then']}, now {change['now']})" if change["part"] in ("contract", "source", "space") else ""
