"""Whether the whole store is sound: the file page by page, its foreign keys, every choice and rule. Read-only, whatever is found."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from kernelyard.store import rules
from kernelyard.store.choices import connect_read_only, listed
from kernelyard.store.files import database_path, failures, is_corruption


def problems(path: Path | None = None) -> list[str]:
    """What is broken, a sentence each; none where all is sound or there is no store yet. Raises StoreFailed where it can't be looked at."""
    path = path or database_path()
    if not path.is_file():
        return []
    with failures(path):
        try:
            with closing(connect_read_only(path)) as connection:
                found = _pages(connection) or _keys(connection)
        except sqlite3.Error as error:
            if not is_corruption(error):
                raise
            return [f"the file: {error}"]
    return found or [
        *(f"the choice of {entry.workload_key} on {entry.device_key}: {entry.problem}" for entry in listed(path=path) if entry.problem),
        *(f"the rule of {entry.op} on {entry.device_key}: {entry.problem}" for entry in rules.listed(path=path) if entry.problem),
    ]


def _pages(connection: sqlite3.Connection) -> list[str]:
    """Unlike opening to write, which asks for a quick check, this also compares every index with its table."""
    return [f"the file: {line}" for (line,) in connection.execute("pragma integrity_check") if line != "ok"]


def _keys(connection: sqlite3.Connection) -> list[str]:
    open_keys = connection.execute("pragma foreign_key_check").fetchall()
    return [f"row {row} of {table} points to a row of {parent} that is not there" for table, row, parent, _ in open_keys]
