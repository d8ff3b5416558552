"""The store's file: created once, checked, set aside when damaged, refused when newer or not writable."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from kernelyard.errors import StoreFailed
from kernelyard.registry.spec import DeviceIdentity
from kernelyard.store.database import Store, open_store
from kernelyard.store.files import file_lock
from kernelyard.store.migrations import MIGRATIONS
from kernelyard.store.records import Run

DEVICE = DeviceIdentity("cpu", "A CPU", "x86_64", "Linux", "cpu-here")
OPEN = "import sys; from pathlib import Path; from kernelyard.store.database import open_store; open_store(Path(sys.argv[1])).close()"


def spawn(code: str, *args: str, **kwargs: object) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", code, *args], stderr=subprocess.PIPE, text=True, **kwargs)  # type: ignore[call-overload, no-any-return]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a home" / "kernelyard.db"


def test_a_fresh_store_is_in_wal_mode_with_every_migration_and_can_be_opened_again(path: Path) -> None:
    with open_store(path) as store:
        assert store.db.journal_mode == "wal"
        assert [row["number"] for row in store.db.query("select number from kernelyard_migrations")] == list(range(1, len(MIGRATIONS) + 1))
    open_store(path).close()


def test_foreign_keys_let_a_browser_of_the_file_follow_a_choice_to_its_run(path: Path) -> None:
    with open_store(path) as store:
        for table in ("choices", "measurements"):
            assert [key.other_table for key in store.db.table(table).foreign_keys] == ["runs"]


def test_eight_processes_create_one_store_at_once(path: Path) -> None:
    # A start gate: every process has imported all it needs and waits on one pipe for the same byte.
    gate, go = os.pipe()
    code = f"import os, kernelyard.store.migrations, sqlite_utils; os.read({gate}, 1); {OPEN}"
    children = [spawn(code, str(path), pass_fds=(gate,)) for _ in range(8)]
    os.write(go, b"12345678")
    errors = [child.communicate(timeout=60)[1] for child in children]
    assert [child.returncode for child in children] == [0] * 8, errors
    with open_store(path) as store:
        assert store.db.table("kernelyard_migrations").count == len(MIGRATIONS)
    assert not list(path.parent.glob("*.corrupt-*"))


def corrupt(path: Path, how: str) -> None:
    content = bytearray(path.read_bytes())
    if how == "truncated":
        path.write_bytes(content[:100])
    elif how == "text":
        path.write_text("This is a text file, and has been one for a long time.\n" * 40)
    else:
        content[4096 * 2 : 4096 * 9] = b"\xa5" * (4096 * 7)
        path.write_bytes(content)


@pytest.mark.parametrize("how", ["truncated", "text", "pages"])
def test_a_damaged_file_is_set_aside_whole_and_a_new_store_begun(path: Path, how: str, capsys: pytest.CaptureFixture[str]) -> None:
    open_store(path).close()
    corrupt(path, how)
    damaged = path.read_bytes()
    with open_store(path) as store:
        assert store.choices() == []
    (aside,) = path.parent.glob("kernelyard.db.corrupt-*[0-9]")
    assert aside.read_bytes() == damaged
    assert str(aside) in capsys.readouterr().err


def test_the_wal_of_a_damaged_file_goes_with_it(path: Path) -> None:
    open_store(path).close()
    corrupt(path, "text")
    path.with_name("kernelyard.db-wal").write_bytes(b"old pages")
    open_store(path).close()
    asides = sorted(p.name.rpartition("corrupt-")[2][-4:] for p in path.parent.glob("*.corrupt-*"))
    assert "-wal" in asides


def test_an_empty_file_becomes_a_store(path: Path) -> None:
    path.parent.mkdir()
    path.touch()
    with open_store(path) as store:
        assert store.runs() == []
    assert not list(path.parent.glob("*.corrupt-*"))


def test_a_store_of_a_newer_version_is_refused_and_kept(path: Path) -> None:
    newer = len(MIGRATIONS) + 7
    with open_store(path) as store:
        store.db.table("kernelyard_migrations").insert({"number": newer, "name": "future", "applied_at": ""})
    with pytest.raises(StoreFailed, match=rf"version {newer}.*up to {len(MIGRATIONS)}.*Upgrade"):
        open_store(path)
    assert path.exists() and not list(path.parent.glob("*.corrupt-*"))


def test_a_home_that_can_not_be_made_is_one_clear_line() -> None:
    with pytest.raises(StoreFailed, match="KERNELYARD_HOME") as caught:
        open_store(Path(os.devnull) / "kernelyard.db")
    assert "\n" not in str(caught.value)


@pytest.mark.skipif(sys.platform != "linux", reason="/sys is a folder that nobody, not even root, can write on Linux")
def test_a_home_that_can_not_be_written_is_one_clear_line() -> None:
    with pytest.raises(StoreFailed, match="KERNELYARD_HOME") as caught:
        open_store(Path("/sys/kernelyard.db"))
    assert "\n" not in str(caught.value)


def test_a_full_disk_is_one_clear_line_and_loses_nothing(path: Path) -> None:
    with open_store(path) as store:
        fill(store)
        with pytest.raises(StoreFailed, match=r"full.*Free some space"):
            for number in range(1000):
                store.save_run(Run(f"run-{number}", "tune", "tune rmsnorm", "kernelyard tune rmsnorm", DEVICE))
        kept = len(store.runs())
    with open_store(path) as store:
        assert len(store.runs()) == kept


def fill(store: Store) -> None:
    """As good as a full disk: SQLite refuses to grow the file by more than two pages."""
    pages = store.db.execute("pragma page_count").fetchone()[0]
    store.db.execute(f"pragma max_page_count = {pages + 2}")


def test_another_holder_of_the_lock_is_named(path: Path) -> None:
    path.parent.mkdir()
    lock = path.with_name("some.lock")
    with file_lock(lock), pytest.raises(StoreFailed, match=r"some\.lock"), file_lock(lock, timeout_s=0.05):
        pass


def test_sqlite_reads_it_without_us(path: Path) -> None:
    open_store(path).close()
    with sqlite3.connect(path) as connection:
        assert connection.execute("select count(*) from choices").fetchone() == (0,)


def test_a_store_of_an_older_version_gets_the_missing_steps_and_keeps_its_rows(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as older:
        older.setattr("kernelyard.store.migrations.MIGRATIONS", MIGRATIONS[:1])
        with open_store(path) as store:
            store.save_run(Run("run-1", "tune", "tune rmsnorm", "kernelyard tune rmsnorm", DEVICE))
            assert "proofs" not in store.db.table_names()
    with open_store(path) as store:
        assert [run["id"] for run in store.runs()] == ["run-1"]
        assert store.db.table("proofs").count == 0


def test_a_store_that_another_process_holds_is_one_clear_line(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernelyard.store.database.BUSY_S", 0.05)
    hold = "import sqlite3, sys; c = sqlite3.connect(sys.argv[1]); c.execute('begin immediate'); print(flush=True); sys.stdin.read()"
    with open_store(path) as store:
        holder = spawn(hold, str(path), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert holder.stdout is not None
        holder.stdout.readline()
        with pytest.raises(StoreFailed, match="Another process holds it") as caught:
            store.save_run(Run("run-1", "tune", "tune rmsnorm", "kernelyard tune rmsnorm", DEVICE))
        holder.communicate("")
        assert "\n" not in str(caught.value)
        assert store.runs() == []
