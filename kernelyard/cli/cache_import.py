"""`cache import`: choices that another store exported, each checked before any is kept."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kernelyard.cli import cache_state
from kernelyard.cli.output import emit, json_option

if TYPE_CHECKING:
    from kernelyard.store.exchange import Exported
    from kernelyard.store.importing import Taken
    from kernelyard.store.records import Entry

WORDS = {
    "imported": "imported",
    "unchanged": "here already",
    "kept": "left out: another choice is stored here, and it holds or theirs does not either (`cache why` tells, `cache prune` takes away)",
    "elsewhere": "left out: of a device that is not here; --keep-others keeps them, and none of them serves here",
    "busy": "left out: another process stored a choice here meanwhile",
}


@click.command("import", epilog="Example: kernelyard cache import rmsnorm.json")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--keep-others", is_flag=True, help="Also keep choices of devices that are not here; they never serve here.")
@json_option
def import_command(file: Path, keep_others: bool, as_json: bool) -> int:
    """Take the choices of FILE, which `cache export` wrote, into the store: all that fit, or nothing.

    Every value is checked and none of it is run; ops, kernels and configs must be installed here. A choice serves only where device,
    driver, sources and versions are those it was made with. One that is stored here and holds stays; one that doesn't is replaced.
    Exit code 2, and nothing imported, for a file that is damaged, of a newer version, of unknown kernels, or of other devices alone.
    """
    from kernelyard.store import importing
    from kernelyard.store.database import open_store
    from kernelyard.store.exchange import read

    exported = read(file)
    found = importing.entries(exported)
    for entry in found:
        _check(entry, file)
    _some_device(found, exported, keep_others)
    outcome, taken = _judged(found, keep_others)
    if taken:
        with open_store() as store:
            busy = importing.take(store, exported, taken)
        outcome["busy"] += len(busy)
        outcome["imported"] -= len(busy)
    counts = {word: outcome[word] for word in WORDS}
    stale = {f"{one.entry.op} {one.entry.workload}": why for one in taken if (why := cache_state.stale(one.entry))}
    if as_json:
        emit({"file": str(file), **counts, "stale": stale})
    else:
        _print(counts, stale)
    return 0


def _check(entry: Entry, file: Path) -> None:
    """Raises UsageError where an op, kernel or config is none of those that are installed. Constraints are asked when it would serve."""
    from kernelyard.errors import UnknownName, UsageError
    from kernelyard.registry import registry

    assert entry.choice is not None
    try:
        kernel = registry.current().kernel(entry.op, entry.choice.kernel)
    except UnknownName as error:
        do = "Nothing was imported; install the plugin that has it, or export other ops alone with `cache export --op`."
        raise UsageError(f"{file}: {error.asked}", exists=error.exists, do=do) from error
    if not (answer := kernel.space.holds(entry.choice.config)):
        asked = f"{file}: the choice of {entry.op} {entry.workload} is no config of {kernel.name}: {answer.reason}."
        raise UsageError(asked, do="Nothing was imported. Another version of the kernel may have had it.")


def _some_device(found: list[Entry], exported: Exported, keep_others: bool) -> None:
    from kernelyard.errors import UsageError

    here = cache_state.here()
    if found and not keep_others and not any(entry.device_key in here for entry in found):
        theirs = ", ".join(sorted({entry.device_key for entry in found}))
        asked = f"every choice of {exported.file} is of another device or driver: {theirs}."
        do = "Nothing was imported. --keep-others keeps them, and none of them serves here."
        raise UsageError(asked, exists=f"Here: {', '.join(sorted(here))}.", do=do)


def _judged(found: list[Entry], keep_others: bool) -> tuple[Counter[str], list[Taken]]:
    """What becomes of each choice, and those to write."""
    from kernelyard.store.choices import listed
    from kernelyard.store.importing import Taken

    stored = {(one.op, one.workload_key, one.device_key, one.mode): one for one in listed()}
    outcome, taken, here = Counter[str](), [], cache_state.here()
    for entry in found:
        before = stored.get((entry.op, entry.workload_key, entry.device_key, entry.mode))
        word = "elsewhere" if entry.device_key not in here and not keep_others else _word(entry, before)
        outcome[word] += 1
        if word == "imported":
            taken.append(Taken(entry, before))
    return outcome, taken


def _word(entry: Entry, before: Entry | None) -> str:
    from kernelyard.store.importing import same

    if before is None:
        return "imported"
    if same(entry, before):
        return "unchanged"
    replaces = before.choice is None or (bool(cache_state.stale(before)) and not cache_state.stale(entry))
    return "imported" if replaces else "kept"


def _print(counts: dict[str, int], stale: dict[str, str]) -> None:
    lines = [f"{count} {WORDS[word]}" for word, count in counts.items() if count]
    lines += [f"  {what}: does not serve here, {reason}" for what, reason in stale.items()]
    print("\n".join(lines) or "The file holds no choices.")
