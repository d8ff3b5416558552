"""What reads the store first must not stop at what opening it to write would mend."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from kernelyard.errors import StoreFailed
from kernelyard.registry import registry
from kernelyard.store.choices import listed
from kernelyard.store.database import open_store
from kernelyard.tuner.tune import _stored


@pytest.fixture
def database(home: Path) -> Path:
    with open_store() as store:
        return store.path


def test_an_empty_file_is_a_store_without_choices(database: Path) -> None:
    database.write_bytes(b"")
    assert listed() == []


@pytest.mark.parametrize("damage", [b"this is no database, and longer than a header", b"SQLite format 3\0" + bytes(84)])
def test_a_tuner_that_reads_a_damaged_file_has_it_set_aside_and_goes_on(database: Path, damage: bytes) -> None:
    for extra in database.parent.glob("kernelyard.db-*"):
        extra.unlink()
    database.write_bytes(damage)
    assert _stored(registry.current().op("rmsnorm")) == []
    assert list(database.parent.glob("kernelyard.db.corrupt*"))


def test_a_store_of_a_newer_version_is_refused_by_readers_too(database: Path) -> None:
    with sqlite3.connect(database) as connection:
        connection.execute("insert into kernelyard_migrations values (99, 'later', 'then')")
    with pytest.raises(StoreFailed, match="schema version 99"):
        listed()
