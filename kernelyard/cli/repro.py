"""`repro ID`: a failure that `check` found, shrunk and written as a script that shows it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kernelyard.cli.output import Seconds, emit, json_option, say

if TYPE_CHECKING:
    from kernelyard.store.failures import Failure
    from kernelyard.verify.reproduce import Reproduction
    from kernelyard.verify.shrink import Shrunk
    from kernelyard.verify.tries import Subject


@click.command(epilog="Example: kernelyard repro 3f2a9c1e --output fault.py && python fault.py")
@click.argument("id")
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), help="The script; by default repro/ID.py in KERNELYARD_HOME.")
@click.option("--budget", "budget_s", type=Seconds(min=1), default=120, show_default=True, help="Seconds for shrinking.")
@json_option
def repro(id: str, output: Path | None, budget_s: float, as_json: bool) -> int:
    """Write the smallest script that shows the failure ID, and run it to prove that.

    The failure is shrunk to small sizes and plain values, inside what the kernel declares to support. The script exits with
    1 while the fault is there and with 0 when it is gone. Exit code 1 when the failure does not show any more.
    """
    from kernelyard.registry.home import home
    from kernelyard.store.failures import find
    from kernelyard.verify.isolation import Worker
    from kernelyard.verify.reproduce import reproduce
    from kernelyard.verify.shrink import shrink

    failure = find(id)
    path = (output or home() / "repro" / f"{failure.id}.py").absolute()
    subject = _subject(failure)
    say(f"{failure.id}: {failure.kernel} of {failure.op}, {failure.status} at {_place(subject)}: shrinking")
    with Worker() as worker:
        shrunk = shrink(subject, worker, budget_s)
    if shrunk is None:
        return _gone(failure, as_json=as_json)
    say(f"{failure.id}: {shrunk.tries} cases run; the smallest that fails is {_place(shrunk.subject)}; writing the script")
    made = reproduce(shrunk, path)
    _show(failure, shrunk, made, as_json=as_json)
    return 0 if made.proved else 1


def _subject(failure: Failure) -> Subject:
    """Raises UnknownName for a kernel that is no longer there, UsageError for a device that is not."""
    from kernelyard.registry import registry
    from kernelyard.registry.machine import check_device
    from kernelyard.registry.matrix import point_from
    from kernelyard.registry.spec import Status
    from kernelyard.verify.journal import Where
    from kernelyard.verify.tries import Subject

    table = registry.current()
    where = Where(point_from(failure.point), failure.edge, failure.config, failure.seed)
    kernel = table.kernel(failure.op, failure.kernel)
    return Subject(table.op(failure.op), kernel, check_device(failure.device), where, Status(failure.status))


def _place(subject: Subject) -> str:
    from kernelyard.verify.oracle import case_name

    plain = "".join(f", {name} {kind}" for name, kind in subject.values.items())
    return case_name(subject.op.workload(subject.where.point, subject.device), subject.where.edge) + plain


def _gone(failure: Failure, *, as_json: bool) -> int:
    from kernelyard.registry import registry

    kernel = registry.current().kernel(failure.op, failure.kernel)
    changed = "its sources have changed since" if kernel.source_hash() != failure.source_hash else "its sources are the same as then"
    words = f"{failure.id} does not show any more: {failure.kernel} of {failure.op} is right there now ({changed})"
    if as_json:
        emit({"id": failure.id, "reproduced": False, "reason": words})
    else:
        print(words)
    return 1


def _show(failure: Failure, shrunk: Shrunk, made: Reproduction, *, as_json: bool) -> None:
    point = shrunk.subject.where.point
    content: dict[str, Any] = {
        "id": failure.id, "op": failure.op, "kernel": failure.kernel, "status": failure.status, "reason": shrunk.reason,
        "dims": list(point.dims), "dtype": point.dtype, "layout": point.layout, "edge": shrunk.subject.where.edge,
        "values": shrunk.subject.values, "tries": shrunk.tries, "script": str(made.path), "lines": made.lines,
        "reproduced": made.proved, "fallback_right": made.fallback_right, "output": made.output.strip(),
    }  # fmt: skip
    if as_json:
        return emit(content)
    print(f"{failure.id}: {failure.status} at {_place(shrunk.subject)}: {shrunk.reason}")
    if not made.proved:
        return print(f"the script does not show it by itself: {made.path}\n{made.output.strip()}")
    fallback = {True: f", with 0 with {shrunk.subject.op.fallback} in its place", None: ""}.get(
        made.fallback_right, f"; so it does with {shrunk.subject.op.fallback} in its place: is the contract right?"
    )
    print(f"{made.path}: {made.lines} lines; it was run and exits with 1 against {failure.kernel}{fallback}")
