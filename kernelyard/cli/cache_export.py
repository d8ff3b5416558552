"""`cache export`: choices for another store, or trials for other tools."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kernelyard.cli.output import say

if TYPE_CHECKING:
    from kernelyard.store.trials import Trial


@click.command(epilog="Example: kernelyard cache export rmsnorm.json --op rmsnorm")
@click.argument("file", required=False, type=click.Path(path_type=Path, dir_okay=False))
@click.option("--op", help="Only this op.")
@click.option("--format", "kind", type=click.Choice(["json", "t4"]), default="json", show_default=True)
def export(file: Path | None, op: str | None, kind: str) -> int:
    """Write the stored choices to FILE, or to stdout, for `cache import`.

    json: every choice with its evidence and the run that made it, by the schema in kernelyard/store/schemas. t4: every finished trial
    in the T4 results format 1.0.0 of Kernel Tuner and others, which holds no choices. Exit code 1 where something had to be left out.
    Rules of buckets are never in it, which is said.
    """
    from kernelyard.errors import UnknownName
    from kernelyard.registry import registry

    if op is not None and op not in registry.current().ops and op not in _stored_ops():
        raise UnknownName("op", op, registry.current().ops)
    content, problems, told = _choices(op) if kind == "json" else _trials(op)
    for problem in problems:
        say(f"kernelyard: {problem}.")
    if kind == "json" and (rules := _rules(op)):
        say(f"kernelyard: {rules} rules of buckets are not in the file: `kernelyard tune --bucket` makes them anew where it goes.")
    text = json.dumps(content, indent=1, allow_nan=False) + "\n"
    if file is None:
        print(text, end="")
    else:
        _write(file, text)
        say(f"{told} in {file}.")
    return 1 if problems else 0


def _stored_ops() -> set[str]:
    from kernelyard.store.choices import listed

    return {entry.op for entry in listed()}


def _rules(op: str | None) -> int:
    from kernelyard.store.rules import listed

    return len(listed(op))


def _choices(op: str | None) -> tuple[dict[str, Any], list[str], str]:
    from importlib.metadata import version

    from kernelyard.store.choices import listed
    from kernelyard.store.database import open_store
    from kernelyard.store.exchange import content

    entries = listed(op)
    runs: list[dict[str, Any]] = []
    if entries:
        with open_store(read_only=True) as store:
            runs = store.runs()
    found, problems = content(entries, runs, version("kernelyard"))
    return found, problems, f"{len(found['choices'])} choices"


def _trials(op: str | None) -> tuple[dict[str, Any], list[str], str]:
    from kernelyard.store import t4, trials

    finished, unreadable = trials.listed(op)
    told = [(trial, config) for trial in finished if (config := _config(trial)) is not None]
    left_out = {"they can't be read": unreadable, "a space that has changed since says what their configs were": len(finished) - len(told)}
    problems = [f"{count} trials are left out: {why}" for why, count in left_out.items() if count]
    return t4.content(told), problems, f"{len(told)} trials"


def _config(trial: Trial) -> Mapping[str, Any] | None:
    """The config of a trial; None where it was kept as places in a space that is not there any more."""
    if not trial.places:
        return trial.parameters
    from kernelyard.registry import registry

    kernel = registry.current().by_op.get(trial.key["op"], {}).get(trial.key["kernel"])
    if kernel is None or kernel.space.hash() != trial.key["space"]:
        return None
    return {p.name: p.values[trial.parameters[p.name]] for p in kernel.space.parameters}


def _write(path: Path, text: str) -> None:
    """Whole or not at all; a device or a pipe is written to, as renaming over /dev/null takes it away from everyone on the machine."""
    from kernelyard.errors import UsageError

    path = Path(os.path.realpath(path))  # and a link stays one
    fresh = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        if path.exists() and not path.is_file():
            path.write_text(text, encoding="utf-8")
            return
        fresh.write_text(text, encoding="utf-8")
        fresh.replace(path)
    except OSError as error:
        raise UsageError(f"{path} can't be written: {error.strerror}.") from error
    finally:
        with contextlib.suppress(OSError):  # what kept it from being written may keep it from being looked for
            fresh.unlink()
