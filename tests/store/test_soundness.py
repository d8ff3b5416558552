"""A broken store is told with exit code 1 and left as it is; a sound one says so."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from kernelyard.cli import run
from kernelyard.store.database import open_store
from kernelyard.store.soundness import problems
from tests.store.test_choices import DEVICE, EVIDENCE, WORKLOAD, choice, save


@pytest.fixture
def path(home: Path) -> Path:
    path = home / "kernelyard.db"
    save(path, choice())
    return path


def bad_pages(path: Path) -> None:
    for beside in path.parent.glob("kernelyard.db-*"):
        beside.unlink()
    content = bytearray(path.read_bytes())
    content[4096 * 2 : 4096 * 9] = b"\xa5" * (4096 * 7)
    path.write_bytes(content)


def write(path: Path, statement: str) -> None:
    """By a connection that is closed at once: what SQLite still has to write then is in the file before it is looked at."""
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(statement)


def open_key(path: Path) -> None:
    write(path, "delete from runs")


def bad_config(path: Path) -> None:
    write(path, "update choices set config = '{'")


def test_a_sound_store_has_no_problems(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert problems() == []
    assert run(["cache", "verify"]) == 0
    assert f"{path} is sound" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("harm", "told"), [(bad_pages, "the file"), (open_key, "row 1 of choices"), (bad_config, "config '{' is not JSON")]
)
def test_what_is_broken_is_told_and_nothing_is_changed(
    harm: Callable[[Path], None], told: str, path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    harm(path)
    before = path.read_bytes()
    assert run(["cache", "verify"]) == 1
    assert told in capsys.readouterr().out
    assert path.read_bytes() == before


def test_no_store_is_sound_and_none_is_made(home: Path) -> None:
    assert run(["cache", "verify"]) == 0
    assert not home.exists()


def test_a_clock_that_went_back_does_not_bring_an_older_choice_back(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernelyard.store.records.now", lambda: "1999-01-01T00:00:00Z")
    with open_store(path) as store:
        store.save_choice(choice("torch.eager"), WORKLOAD, EVIDENCE)
        (entry,) = store.choices()
    assert entry.choice is not None and entry.choice.kernel == "torch.eager"
    assert entry.device_key == DEVICE.key()
