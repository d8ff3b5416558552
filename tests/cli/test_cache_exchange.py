"""`cache export` and `cache import`: what goes out comes in, once; what does not fit is refused whole."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kernelyard.cli import run
from kernelyard.registry.machine import identity
from kernelyard.store.choices import listed
from kernelyard.store.database import open_store
from kernelyard.store.exchange import MOST_BYTES
from tests.cli import stored

OTHER = "cuda/NVIDIA Other/sm_99/1.0"


@pytest.fixture
def file(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An export of one choice that holds here; the home is another one now, in which nothing is stored."""
    stored.save()
    path = tmp_path / "choices.json"
    assert run(["cache", "export", str(path)]) == 0
    monkeypatch.setenv("KERNELYARD_HOME", str(tmp_path / "another home"))
    return path


def edit(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def counts(capsys: pytest.CaptureFixture[str], path: Path, *more: str) -> dict[str, Any]:
    capsys.readouterr()
    assert run(["cache", "import", str(path), "--json", *more]) == 0
    return dict(json.loads(capsys.readouterr().out))


def refused(capsys: pytest.CaptureFixture[str], path: Path) -> str:
    """What is said; nothing may have come into the store."""
    before = listed()
    assert run(["cache", "import", str(path)]) == 2
    said = capsys.readouterr().err
    assert listed() == before and "should not have happened" not in said and len(said) < 1500
    return said


def test_an_imported_choice_serves_and_says_where_it_came_from(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert counts(capsys, file)["imported"] == 1
    assert run(["cache", "why", "rmsnorm", "--shape", "3x8", "--dtype", "fp32", "--device", "cpu"]) == 0
    assert "imported from choices.json (sha256 " in capsys.readouterr().out
    assert run(["cache", "show", "rmsnorm"]) == 0
    assert "imported from choices.json" in capsys.readouterr().out
    with open_store() as store:
        assert [row["id"] for row in store.runs()] == ["run-1"]


def test_importing_twice_changes_nothing(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    counts(capsys, file)
    before = listed()
    again = counts(capsys, file)
    assert (again["imported"], again["unchanged"]) == (0, 1) and listed() == before


def test_an_export_of_an_import_is_the_same_choice(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    counts(capsys, file)
    assert run(["cache", "export", str(tmp_path / "again.json")]) == 0
    assert counts(capsys, tmp_path / "again.json")["unchanged"] == 1


def test_a_choice_that_is_stored_here_and_holds_stays(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stored.save(kernel="torch.eager")
    assert counts(capsys, file)["kept"] == 1
    assert (one := stored.entry().choice) is not None and one.kernel == "torch.eager"


def test_a_choice_that_is_stale_here_is_replaced_by_one_that_holds(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stored.save(kernel="torch.eager", source_hash="old")
    assert counts(capsys, file)["imported"] == 1
    assert (one := stored.entry().choice) is not None and one.kernel == "cpp.onepass"


def test_a_choice_made_with_another_source_is_kept_and_said_not_to_serve(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    edit(file, lambda content: content["choices"][0].update(source_hash="theirs"))
    found = counts(capsys, file)
    assert found["imported"] == 1 and found["stale"] == {"rmsnorm 3x8 fp32": "stale: the kernel's source has changed since it was tuned"}


def of_another_device(content: dict[str, Any]) -> None:
    row = content["choices"][0]
    row.update(device_key=OTHER, workload_key=row["workload_key"].replace("@cpu", "@cuda"))


def test_a_file_of_other_devices_alone_is_refused_and_names_them(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    edit(file, of_another_device)
    said = refused(capsys, file)
    assert OTHER in said and identity("cpu").key() in said and "--keep-others" in said


def test_choices_of_other_devices_are_kept_on_request_and_never_serve(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    edit(file, of_another_device)
    assert counts(capsys, file, "--keep-others")["imported"] == 1
    assert run(["cache", "why", "rmsnorm", "--shape", "3x8", "--dtype", "fp32", "--device", "cpu"]) == 1
    assert f"the choice on {OTHER} (device time) can't be used" in capsys.readouterr().out


def test_of_a_mixed_file_only_the_choices_of_this_device_come_in(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def mix(content: dict[str, Any]) -> None:
        content["choices"].append(dict(content["choices"][0]))
        of_another_device(content)

    edit(file, mix)
    found = counts(capsys, file)
    assert (found["imported"], found["elsewhere"]) == (1, 1) and stored.entry().device_key == identity("cpu").key()


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"op": "nonesuch", "workload_key": "nonesuch[x=1:float32]@cpu"}, "no op named 'nonesuch'"),
        ({"kernel": "cpp.nonesuch"}, "no kernel of rmsnorm named 'cpp.nonesuch'"),
        ({"config": {"threads": 1}}, "is no config of cpp.onepass: config has ['threads']"),
        ({"run_id": "elsewhere"}, "run 'elsewhere', which is not in the file"),
        ({"workload_key": "softmax[x=1:float32]@cpu"}, "is not one of 'rmsnorm'"),
        ({"reason": "\x1b[2J"}, "without control characters"),
        ({"reason": "x" * 20001}, "text of at most 20000 characters"),
        ({"kernel": 7}, "kernel is 7, not a name"),
        ({"mode": "sometimes"}, "mode is 'sometimes'"),
        ({"evidence": {"device_time_us": {"median": 0}}}, "not a time > 0"),
        ({"evidence": {"device_time_us": {"median": 10**400}}}, "not a number up to"),
        ({"evidence": {**stored.EVIDENCE, "finals": 5}}, "evidence.finals is 5, not a list"),
        ({"evidence": {**stored.EVIDENCE, "searched": {}}}, "evidence lacks call_time_us"),
        ({"surprise": 1}, "'surprise', which the schema does not know"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_choice_that_can_not_be_is_refused(file: Path, capsys: pytest.CaptureFixture[str], change: dict[str, Any], told: str) -> None:
    edit(file, lambda content: content["choices"][0].update(change))
    assert told in refused(capsys, file)


def test_one_bad_choice_among_good_ones_keeps_them_all_out(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = {"workload_key": stored.workload(5).key(), "kernel": "cpp.nonesuch"}
    edit(file, lambda content: content["choices"].append({**content["choices"][0], **bad}))
    refused(capsys, file)
    assert listed() == []


def test_a_parameter_outside_of_the_kernels_space_is_refused_with_what_it_may_be(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    edit(file, lambda content: content["choices"][0]["config"].update(threads=3))
    assert "threads=3 is not one of [1, 2, 4" in refused(capsys, file)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "it is not JSON"),
        (b"\xff\xfe\x00", "it is not JSON"),
        (b"[" * 200_000, "it is nested too deeply"),
        (b'{"a": NaN}', "NaN is no number"),
        (b'{"a": 1e999}', "it is not JSON"),
        (b'{"a": "\\ud800"}', "it is not JSON"),
        (b'{"a": 1, "a": 2}', "'a' stands twice"),
        (b"[1]", "it holds [1], not an object"),
        (b"null", "it holds None"),
        (b'{"schema_version": "1.0.0", "results": []}', "T4 holds trials and no choices"),
        (b'{"format": "kernelyard-choices", "schema": 2, "wholly": "different"}', "schema 2, of a newer kernelyard"),
        (b'{"format": "kernelyard-choices", "schema": true}', "its schema is True"),
        (b'{"format": "kernelyard-choices", "schema": 1}', "the file lacks kernelyard, exported_at, runs, choices"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_file_that_is_none_is_refused(home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes, told: str) -> None:
    path = tmp_path / "garbage.json"
    path.write_bytes(content)
    assert told in refused(capsys, path)
    assert not home.exists()


def test_a_truncated_file_is_refused_wherever_it_ends(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = file.read_bytes()
    for length in range(0, len(whole) - 2, 97):
        file.write_bytes(whole[:length])
        assert "it is not JSON" in refused(capsys, file)


def test_a_huge_file_is_refused_unread(home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "huge.json"
    with path.open("wb") as sparse:
        sparse.truncate(MOST_BYTES + (1 << 20))
    assert "At most 128 MiB are read" in refused(capsys, path)


@pytest.mark.parametrize(("name", "told"), [("nowhere.json", "No such file"), ("/dev/zero", "is no file"), (".", "is no file")])
def test_what_is_no_file_is_refused(home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, told: str) -> None:
    assert told in refused(capsys, tmp_path / name)


def test_an_export_to_where_nobody_can_write_is_one_clear_line(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stored.save()
    assert run(["cache", "export", "/dev/null/choices.json"]) == 2
    assert "can't be written" in capsys.readouterr().err


def test_an_export_into_a_pipe_leaves_it_a_pipe(home: Path, tmp_path: Path) -> None:
    stored.save()
    os.mkfifo(tmp_path / "pipe")
    with subprocess.Popen(["cat", str(tmp_path / "pipe")], stdout=subprocess.PIPE) as reader:
        try:
            assert run(["cache", "export", str(tmp_path / "pipe")]) == 0
            assert (tmp_path / "pipe").is_fifo()
            assert len(json.loads(reader.communicate()[0])["choices"]) == 1
        finally:
            reader.kill()  # it would wait for ever at a pipe that was taken away


def test_an_export_through_a_link_leaves_it_a_link(home: Path, tmp_path: Path) -> None:
    stored.save()
    (tmp_path / "link.json").symlink_to(tmp_path / "choices.json")
    assert run(["cache", "export", str(tmp_path / "link.json")]) == 0
    assert (tmp_path / "link.json").is_symlink() and json.loads((tmp_path / "choices.json").read_text())["choices"]


def test_a_choice_that_can_not_be_read_is_left_out_and_said(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stored.save()
    stored.save(stored.workload(5))
    with open_store() as store, store.db.atomic():
        store.db.execute("update choices set config = '{' where workload = '5x8 fp32'")
    assert run(["cache", "export"]) == 1
    printed = capsys.readouterr()
    assert len(json.loads(printed.out)["choices"]) == 1 and stored.workload(5).key() in printed.err


def test_an_export_names_no_host_and_no_single_device(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stored.save()
    assert run(["cache", "export"]) == 0
    assert identity("cpu").uuid not in capsys.readouterr().out


def test_an_op_that_nobody_knows_is_refused_by_export(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["cache", "export", "--op", "nonesuch"]) == 2
    assert "no op named 'nonesuch'" in capsys.readouterr().err
