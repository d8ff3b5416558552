"""Opening the store to write: created and migrated once whatever the number of processes, checked, repaired by setting aside."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernelyard.registry.home import home
from kernelyard.registry.spec import Choice, Workload
from kernelyard.store import choices
from kernelyard.store.files import BUSY_S, NAME, damage, failures, file_lock, make_folder, set_aside
from kernelyard.store.records import Entry, Measurement, Run, choice_row, measurement_row, run_row, tolerant_text

if TYPE_CHECKING:
    from sqlite_utils import Database


class Store:
    """An open database. Every save is committed when it returns, and visible to other processes."""

    def __init__(self, path: Path, db: Database) -> None:
        self.path, self.db = path, db

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; what was saved stays."""
        self.db.close()

    def save_run(self, run: Run) -> None:
        """Record a run before its measurements and choices."""
        with failures(self.path):
            self.db.table("runs").insert(run_row(run))

    def save_choice(self, choice: Choice, workload: Workload, evidence: Mapping[str, Any]) -> None:
        """Put a choice in the place of the one its key had; raises DeclarationError without a finite time > 0."""
        row = choice_row(choice, workload, evidence)
        with failures(self.path), self.db.atomic():
            self.put(row)

    def put(self, row: Mapping[str, Any]) -> None:
        """Write a row of choices, within the transaction of the caller."""
        columns, marks = ", ".join(row), ", ".join("?" for _ in row)
        updates = ", ".join(f"{name} = excluded.{name}" for name in row)
        sql = f"insert into choices ({columns}) values ({marks}) on conflict (op, workload_key, device_key, mode) do update set {updates}"
        self.db.execute(sql, list(row.values()))

    def save_measurements(self, items: Iterable[Measurement]) -> None:
        """Append times, all or none."""
        rows = [measurement_row(item) for item in items]
        with failures(self.path):
            self.db.table("measurements").insert_all(rows)

    def find_choice(self, op: str, workload_key: str, device_key: str, mode: str) -> Entry | None:
        """The stored choice of one key with its evidence, damaged or not."""
        with failures(self.path):
            found = choices.read(self.db.conn, choices.BY_KEY, (op, workload_key, device_key, mode))
        return found[0] if found else None

    def choices(self, op: str | None = None) -> list[Entry]:
        """Every stored choice, or those of one op."""
        with failures(self.path):
            return choices.read(self.db.conn, "? is null or op = ?", (op, op))

    def runs(self) -> list[dict[str, Any]]:
        """Every run, oldest first."""
        with failures(self.path):
            return list(self.db.query("select * from runs order by started_at, id"))

    def measurements(self, run_id: str) -> list[dict[str, Any]]:
        """The times of one run, in the order they were saved."""
        with failures(self.path):
            return list(self.db.query("select * from measurements where run_id = ? order by id", [run_id]))


def open_store(path: Path | None = None, *, read_only: bool = False) -> Store:
    """The store at `path`, else in home(); raises StoreFailed with one line where that can't be.

    A corrupt file is set aside, never deleted, and its new path printed on stderr. Read-only opening creates,
    migrates and checks nothing.
    """
    path = path or home() / NAME
    with failures(path):
        if read_only:
            return Store(path, _database(choices.connect_read_only(path)))
        make_folder(path.parent)
        return _open(path)


def _open(path: Path) -> Store:
    """Only the first to come creates, migrates or sets aside; the others wait and find it done."""
    with file_lock(path.with_name(path.name + ".lock")):
        problem = damage(path)
        if problem:
            set_aside(path, problem)
        db = _database(sqlite3.connect(path, timeout=BUSY_S))
        try:
            _prepare(path, db)
        except BaseException:
            db.close()
            raise
    return Store(path, db)


def _prepare(path: Path, db: Database) -> None:
    from kernelyard.store.migrations import MIGRATIONS, migrate, refuse_newer, version

    found = version(db)
    refuse_newer(path, found)
    if db.journal_mode != "wal":
        db.enable_wal()
    if found < len(MIGRATIONS):
        migrate(db)


def _database(connection: sqlite3.Connection) -> Database:
    from sqlite_utils import Database

    connection.text_factory = tolerant_text
    # Plugins of sqlite-utils could change what a query means, and cost 100 ms to look for.
    database = Database(connection, execute_plugins=False)
    database.execute("pragma foreign_keys = on")
    return database
