"""The database as a file: locks between processes, damage and setting aside, SQLite's errors in our words."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path

from kernelyard.errors import StoreFailed
from kernelyard.registry.home import home_path

NAME = "kernelyard.db"
BUSY_S = 30.0
"""How long a writer waits for another; a commit here takes milliseconds, so 30 s means a stuck process."""

WRITABLE = "Set KERNELYARD_HOME to a folder you can write."


def database_path() -> Path:
    """Where the database of this home is or would be; makes nothing."""
    return home_path() / NAME


def make_folder(folder: Path) -> None:
    """The folder, with its parents; raises StoreFailed."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreFailed(f"{folder} can't be made: {error.strerror}.", do=WRITABLE) from error


def damage(path: Path) -> str:
    """What is wrong with the file itself; empty for a sound database and where there is no file yet."""
    if not path.is_file():
        return ""
    # Read-only, because a connection that may write deletes the -wal of a file that it can't read when it closes.
    uri = path.absolute().as_uri() + "?mode=ro"
    try:
        with closing(sqlite3.connect(uri, uri=True, timeout=BUSY_S)) as connection:
            lines = [str(line) for (line,) in connection.execute("pragma quick_check(3)")]
    except sqlite3.Error as error:
        if not is_corruption(error):
            raise
        return str(error)
    return "" if lines == ["ok"] else "; ".join(lines)


def set_aside(path: Path, problem: str) -> None:
    """Rename the file and what SQLite keeps beside it; -wal and -shm of one database must not meet another."""
    aside = path.with_name(f"{path.name}.corrupt-{datetime.now(UTC).strftime('%Y%m%dT%H%M%S.%f')}")
    for suffix in ("-wal", "-shm", ""):
        beside = path.with_name(path.name + suffix)
        if beside.exists():
            beside.rename(aside.with_name(aside.name + suffix))
    print(f"kernelyard: {path} is damaged ({problem.splitlines()[0]}); it was set aside as {aside} and a new store begun.", file=sys.stderr)


@contextmanager
def file_lock(path: Path, timeout_s: float = BUSY_S) -> Iterator[None]:
    """An exclusive lock between processes that the death of its holder releases; raises StoreFailed, naming it."""
    import filelock

    lock = filelock.FileLock(path, timeout=timeout_s)
    try:
        lock.acquire()
    except filelock.Timeout as error:
        raise StoreFailed(f"another process has held {path} for {timeout_s:.0f} s.", do="End it, or wait and try again.") from error
    except OSError as error:
        raise StoreFailed(f"{path} can't be locked: {error.strerror}.", do=WRITABLE) from error
    try:
        yield
    finally:
        lock.release()


@contextmanager
def failures(path: Path) -> Iterator[None]:
    """SQLite's errors as StoreFailed: which file, what SQLite says, what to do."""
    advice = {
        sqlite3.SQLITE_FULL: "Free some space, or set KERNELYARD_HOME to a folder on another disk.",
        sqlite3.SQLITE_READONLY: WRITABLE,
        sqlite3.SQLITE_CANTOPEN: WRITABLE,
        sqlite3.SQLITE_BUSY: "Another process holds it; end that one, or wait and try again.",
        sqlite3.SQLITE_CORRUPT: "Open it again to write: it is then set aside and a new one begun.",
        sqlite3.SQLITE_NOTADB: "Open it again to write: it is then set aside and a new one begun.",
    }
    try:
        yield
    except sqlite3.Error as error:
        do = advice.get((getattr(error, "sqlite_errorcode", None) or 0) & 0xFF, "")
        raise StoreFailed(f"the store {path} can't be used: {error}.", do=do) from error


def is_corruption(error: sqlite3.Error) -> bool:
    """Whether the file itself is damaged or no database; a lock, a full disk or missing rights are not that."""
    # The low byte is the primary code; corruption has extended ones, such as SQLITE_CORRUPT_INDEX.
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    return code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
