"""Choices: saved with evidence, found to serve, and a damaged one is a miss that a new tuning overwrites."""

from __future__ import annotations

import math
import sqlite3
import stat
from pathlib import Path
from typing import Any

import pytest

from kernelyard.registry.spec import Choice, DeclarationError, DeviceIdentity, TensorSpec, Timing, Workload
from kernelyard.store import choices
from kernelyard.store.database import open_store
from kernelyard.store.records import Measurement, Run

DEVICE = DeviceIdentity("cpu", "A CPU", "x86_64", "Linux", "cpu-here")
WORKLOAD = Workload("rmsnorm", (("x", TensorSpec((16, 4096), "float32")),), (), "cpu", (("rows", 16), ("cols", 4096)))
KEY = ("rmsnorm", WORKLOAD.key(), DEVICE.key(), "device")
EVIDENCE = {"device_time_us": {"median": 3.5, "low": 3.4, "high": 3.7}}


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(choices, "_warned", set())
    return tmp_path / "kernelyard.db"


def choice(kernel: str = "cpp.onepass", **config: Any) -> Choice:
    return Choice(*KEY, kernel, config or {"BLOCK": 128, "fast": True}, "c0", "s0", "p0", {"torch": "2.13.0"}, "run-1", "fastest")


def save(path: Path, one: Choice, evidence: dict[str, Any] = EVIDENCE) -> None:
    with open_store(path) as store:
        if not store.runs():
            store.save_run(Run("run-1", "tune", "tune rmsnorm", "kernelyard tune rmsnorm", DEVICE))
        store.save_choice(one, WORKLOAD, evidence)


def damage(path: Path, column: str, value: object) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute(f"update choices set {column} = ?", (value,))


def test_a_saved_choice_is_found_by_another_connection(path: Path) -> None:
    save(path, choice())
    assert choices.find(*KEY, path=path) == choice()


def test_no_store_is_no_choice_and_creates_nothing(path: Path) -> None:
    assert choices.find(*KEY, path=path) is None
    assert choices.listed(path=path) == []
    assert not list(path.parent.iterdir())


def test_another_device_mode_or_workload_is_a_miss(path: Path) -> None:
    save(path, choice())
    for place, value in enumerate(("softmax", "other", "cuda/other", "call")):
        op, workload_key, device_key, mode = [value if i == place else part for i, part in enumerate(KEY)]
        assert choices.find(op, workload_key, device_key, mode, path) is None


def test_a_new_choice_takes_the_place_of_the_old_one(path: Path) -> None:
    save(path, choice())
    save(path, choice("torch.eager", n=1))
    assert [entry.choice and entry.choice.kernel for entry in choices.listed(path=path)] == ["torch.eager"]


DAMAGES = ['{"BLOCK": 12', b"\xff\xfe", "null", "[]", '{"BLOCK": [1]}', "\ud800".encode("utf-8", "surrogatepass"), "[" * 100_000]


@pytest.mark.parametrize("value", DAMAGES, ids=lambda v: repr(v)[:12])
@pytest.mark.parametrize("column", ["config", "versions"])
def test_a_damaged_row_is_a_miss_with_one_warning_naming_the_key_until_tuned_again(
    path: Path, column: str, value: object, capsys: pytest.CaptureFixture[str]
) -> None:
    save(path, choice())
    if column == "versions" and value == '{"BLOCK": [1]}':
        pytest.skip("any value of a version is text enough")
    damage(path, column, value)
    assert choices.find(*KEY, path=path) is None
    assert choices.find(*KEY, path=path) is None
    warning = capsys.readouterr().err
    assert warning.count("\n") == 1 and WORKLOAD.key() in warning
    (entry,) = choices.listed(path=path)
    assert entry.choice is None and entry.problem
    save(path, choice())
    assert choices.find(*KEY, path=path) == choice()


def test_bad_utf8_in_one_row_leaves_the_others_readable(path: Path) -> None:
    save(path, choice())
    with sqlite3.connect(path) as connection:
        connection.execute("update choices set reason = cast(x'ff' as text), config = cast(x'ff' as text)")
    with open_store(path) as store:
        assert len(store.choices()) == 1


@pytest.mark.parametrize("content", [b"", b"not a database, though long enough to be looked at" * 50])
def test_a_file_that_is_no_store_is_a_miss(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    assert choices.find(*KEY, path=path) is None
    assert path.read_bytes() == content


def test_a_folder_that_can_not_be_written_still_serves(path: Path) -> None:
    save(path, choice())
    path.parent.chmod(stat.S_IRUSR | stat.S_IXUSR)
    try:
        assert choices.find(*KEY, path=path) == choice()
    finally:
        path.parent.chmod(stat.S_IRWXU)


@pytest.mark.parametrize("median", [None, math.nan, math.inf, 0.0, "fast"])
def test_a_choice_without_a_real_time_is_refused(path: Path, median: object) -> None:
    with pytest.raises(DeclarationError, match="time"):
        save(path, choice(), {"device_time_us": {"median": median}})
    assert choices.listed(path=path) == []


def test_evidence_that_is_not_finite_is_refused(path: Path) -> None:
    with pytest.raises(DeclarationError, match="finite"):
        save(path, choice(), {**EVIDENCE, "eager_us": math.nan})


def test_a_choice_of_a_run_that_was_not_saved_is_refused(path: Path) -> None:
    from kernelyard.errors import StoreFailed

    with open_store(path) as store, pytest.raises(StoreFailed, match="FOREIGN KEY"):
        store.save_choice(choice(), WORKLOAD, EVIDENCE)


def test_measurements_are_kept_with_their_run(path: Path) -> None:
    save(path, choice())
    timing = Timing(3.5, 3.4, 3.7, "device", "monotonic", 3, 300)
    names = ("run-1", "rmsnorm", WORKLOAD.key(), WORKLOAD.label(), "cpp.onepass")
    item = Measurement(*names, {"a": 1}, DEVICE.key(), timing, "finals", "1", "abc")
    with open_store(path) as store:
        store.save_measurements([item, item])
        rows = store.measurements("run-1")
    assert [(row["median_us"], row["clock"], row["protocol"], row["matrix_hash"]) for row in rows] == [(3.5, "monotonic", "1", "abc")] * 2
