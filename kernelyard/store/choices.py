"""Reading choices to serve calls: read-only, no torch, no sqlite-utils, and never a crash.

A missing file is no choice, and nothing is created. A file or a row that can't be read is a miss, said once.
"""

from __future__ import annotations

import sqlite3
import sys
from contextlib import closing
from pathlib import Path

from kernelyard.registry.spec import Choice
from kernelyard.store.files import database_path, failures
from kernelyard.store.migrations import TABLE, refuse_newer
from kernelyard.store.records import CHOICE_COLUMNS, Entry, entry_of, tolerant_text

SERVING_BUSY_S = 2.0
"""A call must not wait long for a writer; in WAL mode readers wait only while the file is being recovered."""

BY_KEY = "op = ? and workload_key = ? and device_key = ? and mode = ?"

_warned: set[str] = set()


def find(op: str, workload_key: str, device_key: str, mode: str = "device", path: Path | None = None) -> Choice | None:
    """The choice stored under a key, valid or not (the registry compares hashes); None where there is none."""
    found = entry(op, workload_key, device_key, mode, path)
    return found.choice if found is not None else None


def entry(op: str, workload_key: str, device_key: str, mode: str = "device", path: Path | None = None) -> Entry | None:
    """What `find` finds, with its evidence."""
    path = path or database_path()
    if not path.is_file():
        return None
    try:
        with closing(connect_read_only(path)) as connection:
            entries = read(connection, BY_KEY, (op, workload_key, device_key, mode))
    except sqlite3.Error as error:
        if "no such table" not in str(error):  # another process is just creating the store
            warn_once(f"the store {path} can't be read ({error}); untuned kernels are used")
        return None
    if entries and entries[0].problem:
        warn_once(f"the stored choice for {workload_key} on {device_key} ({mode}) can't be read: {entries[0].problem}; tune it again")
    return entries[0] if entries else None


def listed(op: str | None = None, path: Path | None = None) -> list[Entry]:
    """Every stored choice, or those of one op, damaged ones with their problem; none where there is no store yet."""
    path = path or database_path()
    if not path.is_file():
        return []
    with failures(path), closing(connect_read_only(path)) as connection:
        if "choices" not in tables(connection):  # empty, or another process is just creating it
            return []
        refuse_newer(path, connection.execute(f"select coalesce(max(number), 0) from {TABLE}").fetchone()[0])
        return read(connection, "? is null or op = ?", (op, op))


def connect_read_only(path: Path) -> sqlite3.Connection:
    """A connection that changes nothing; also where the folder itself can't be written."""
    uri = path.absolute().as_uri()
    connection = sqlite3.connect(f"{uri}?mode=ro", uri=True, timeout=SERVING_BUSY_S)
    try:
        connection.execute("select count(*) from sqlite_master").fetchone()
    except sqlite3.OperationalError:
        # WAL mode wants to make its -shm file; in a read-only folder only 'immutable' reads, and then nobody writes.
        connection.close()
        wal = path.with_name(path.name + "-wal")
        if wal.exists() and wal.stat().st_size:
            raise
        connection = sqlite3.connect(f"{uri}?immutable=1", uri=True, timeout=SERVING_BUSY_S)
    except sqlite3.Error:
        connection.close()
        raise
    connection.text_factory = tolerant_text
    return connection


def tables(connection: sqlite3.Connection) -> set[str]:
    """The tables that a file has: none while another process is just creating it, fewer where an older version made it."""
    return {name for (name,) in connection.execute("select name from sqlite_master where type = 'table'")}


def read(connection: sqlite3.Connection, where: str, values: tuple[object, ...]) -> list[Entry]:
    """The entries that a condition selects, by op and workload."""
    columns = ", ".join(CHOICE_COLUMNS)
    rows = connection.execute(f"select {columns} from choices where {where} order by op, id", values).fetchall()
    return [entry_of(row) for row in rows]


def warn_once(message: str) -> None:
    """A line on stderr, the same line only once in a process."""
    if message not in _warned:
        _warned.add(message)
        print(f"kernelyard: warning: {message}.", file=sys.stderr)
