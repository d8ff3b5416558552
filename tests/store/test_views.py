"""The file as others read it: views in plain words, foreign keys that lead to a run with a name, in SQLite and in Datasette."""

from __future__ import annotations

import asyncio
import importlib.util
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from kernelyard.registry.spec import Timing
from kernelyard.store import failures
from kernelyard.store.database import open_store
from kernelyard.store.records import Measurement
from tests.store.test_choices import DEVICE, EVIDENCE, WORKLOAD, choice, save
from tests.store.test_failures import FAILURE

VIEWS = ("tuned", "timed", "failed")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store with a choice, a time and a failure."""
    path = tmp_path / "kernelyard.db"
    save(path, choice(), {**EVIDENCE, "speedup_vs_eager": 2.5, "imported": {"file": "theirs.json"}})
    timing = Timing(3.5, 3.4, 3.7, "device", "monotonic", 3, 300)
    names = ("run-1", "rmsnorm", WORKLOAD.key(), WORKLOAD.label(), "cpp.onepass")
    with open_store(path) as store:
        store.save_measurements([Measurement(*names, {"a": 1}, DEVICE.key(), timing, "finals", "1")])
    failures.save([FAILURE], path)
    return path


@pytest.fixture
def connection(path: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(path)) as connection:
        connection.row_factory = sqlite3.Row
        yield connection


def only(connection: sqlite3.Connection, view: str) -> dict[str, Any]:
    (row,) = connection.execute(f"select * from {view}").fetchall()
    return dict(row)


def test_tuned_has_the_choice_with_its_time_its_gain_its_run_and_its_origin(connection: sqlite3.Connection) -> None:
    row = only(connection, "tuned")
    assert (row["median_us"], row["times_faster_than_eager"], row["run"], row["imported_from"]) == (3.5, 2.5, "tune rmsnorm", "theirs.json")


def test_timed_has_the_command_that_took_a_time(connection: sqlite3.Connection) -> None:
    row = only(connection, "timed")
    assert (row["median_us"], row["command"]) == (3.5, "kernelyard tune rmsnorm")


def test_failed_says_what_shows_it_again(connection: sqlite3.Connection) -> None:
    assert only(connection, "failed")["shown_by"] == f"kernelyard repro {FAILURE.id}"


def test_a_damaged_row_leaves_the_view_readable(connection: sqlite3.Connection) -> None:
    with connection:
        connection.execute("update choices set evidence = '{'")
    assert only(connection, "tuned")["median_us"] is None


def test_every_foreign_key_holds_and_leads_to_a_table_with_a_title(connection: sqlite3.Connection) -> None:
    assert connection.execute("pragma foreign_key_check").fetchall() == []
    for table in ("choices", "measurements"):
        (key,) = connection.execute(f"pragma foreign_key_list({table})").fetchall()
        assert (key["table"], key["from"]) == ("runs", "run_id")
    assert "title" in {row["name"] for row in connection.execute("pragma table_info(runs)")}


def test_optunas_tables_can_be_made_and_renamed_beside_the_views(connection: sqlite3.Connection) -> None:
    # As its migrations do it: SQLite then looks at every view, and stops at one of a table that is not there.
    with connection:
        connection.execute("create table studies (study_id integer primary key)")
        connection.execute("alter table studies rename to studies_before")
        connection.execute("drop table studies_before")
    assert [only(connection, view) for view in VIEWS]


@pytest.mark.skipif(importlib.util.find_spec("datasette") is None, reason="datasette is not installed")
def test_datasette_shows_the_views_and_names_the_run_of_a_choice(path: Path) -> None:
    from datasette.app import Datasette

    async def ask() -> tuple[list[dict[str, Any]], list[int]]:
        site = Datasette([str(path)])
        await site.invoke_startup()
        rows = (await site.client.get("/kernelyard/choices.json?_labels=on&_shape=objects")).json()["rows"]
        return rows, [(await site.client.get(f"/kernelyard/{view}")).status_code for view in VIEWS]

    rows, pages = asyncio.run(ask())
    assert rows[0]["run_id"] == {"value": "run-1", "label": "tune rmsnorm"} and pages == [200, 200, 200]
