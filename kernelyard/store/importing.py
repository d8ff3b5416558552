"""Taking the choices of a file into the store: all of them or none, in one transaction.

What may be taken the caller judges, who knows kernels. A choice that changed since it was judged is left as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kernelyard.registry.spec import Choice
from kernelyard.store.database import Store
from kernelyard.store.exchange import Exported
from kernelyard.store.files import failures
from kernelyard.store.records import Entry, dump, entry_row, now


@dataclass(frozen=True)
class Taken:
    """An entry of a file, and what the store had under its key when it was judged."""

    entry: Entry
    before: Entry | None


def entries(exported: Exported) -> list[Entry]:
    """The choices of a file as entries, each with where it came from in its evidence."""
    told = {name: getattr(exported, name) for name in ("file", "sha256", "exported_at", "kernelyard")}
    origin = {**told, "at": now()}
    return [_entry(dict(row), origin) for row in exported.choices]


def _entry(row: dict[str, Any], origin: dict[str, str]) -> Entry:
    told = {name: row.pop(name) for name in ("workload", "shapes", "dtype", "evidence", "created_at")}
    choice = Choice(**row)
    evidence = {**told.pop("evidence"), "imported": origin}
    return Entry(choice.op, choice.workload_key, choice.device_key, choice.mode, choice=choice, problem="", evidence=evidence, **told)


def same(one: Entry, other: Entry) -> bool:
    """Whether two entries say the same, wherever they came from."""
    return one.choice == other.choice and _measured(one) == _measured(other)


def _measured(entry: Entry) -> dict[str, Any]:
    return {name: value for name, value in entry.evidence.items() if name != "imported"}


def take(store: Store, exported: Exported, taken: Sequence[Taken]) -> list[Entry]:
    """Write the runs and choices; the entries that were left, as another process changed what the store has. Raises StoreFailed."""
    needed = {one.entry.choice.run_id for one in taken if one.entry.choice is not None}
    left = []
    with failures(store.path), store.db.atomic():
        # Against a writer that would come between reading and writing: the first statement takes SQLite's write lock.
        store.db.execute("update runs set id = id where 0")
        for run in exported.runs:
            if run["id"] in needed:
                row = {**run, "device": dump(run["device"]), "versions": dump(run["versions"])}
                store.db.table("runs").insert(row, ignore=True)
        for one in taken:
            entry = one.entry
            if store.find_choice(entry.op, entry.workload_key, entry.device_key, entry.mode) == one.before:
                store.put(entry_row(entry))
            else:
                left.append(entry)
    return left

