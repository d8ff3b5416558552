"""What `cache` tells of a bucket's rule and does with it: as with a choice, but that it does not travel."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from kernelyard.cli import run
from kernelyard.registry.machine import identity
from kernelyard.registry.rule import Measured, Rule, form
from kernelyard.registry.spec import Choice
from kernelyard.store import rules
from kernelyard.store.database import open_store
from kernelyard.store.files import database_path
from kernelyard.store.records import Run, stamp
from tests.cli import stored

OTHER = "cuda/NVIDIA Other/sm_99/1.0"


def save(evidence: dict[str, Any] | None = None, run_id: str = "", device_key: str | None = None, **changes: Any) -> Rule:
    """A rule of real work that holds here unless changed, between 3x8 and 30x80."""
    works = [stored.workload(3, 8), stored.workload(30, 80)]
    pair = replace(stored.choice(works[0]), **changes)
    near = tuple(Measured(form(one), tuple(one.dims), one.label(), 0, 0.02) for one in works)
    rule = Rule("rmsnorm", device_key or pair.device_key, "device", 5.0, "mine", "h", (pair,), near, run_id)
    if run_id:
        with open_store() as store:
            store.save_run(Run(run_id, "tune", "tune", "kernelyard tune", identity("cpu"), started_at="2026-01-01T00:00:00Z"))
    rules.save(rule, evidence or {})
    return rule


def found() -> list[Choice]:
    return [pair for one in rules.listed() if one.rule for pair in one.rule.pairs]


def answer(capsys: pytest.CaptureFixture[str], *command: str) -> dict[str, Any]:
    capsys.readouterr()
    assert run(["cache", *command, "--json"]) in (0, 1)
    return dict(json.loads(capsys.readouterr().out))


def why(capsys: pytest.CaptureFixture[str], shape: str) -> dict[str, Any]:
    told = answer(capsys, "why", "rmsnorm", "--shape", shape, "--dtype", "fp32", "--device", "cpu")
    (rule,) = told["workloads"][0]["rules"]
    return dict(rule)


@pytest.mark.parametrize("command", [("list",), ("show", "rmsnorm")])
def test_a_rule_without_any_choice_is_told(command: tuple[str, ...], home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save()
    (rule,) = answer(capsys, *command)["rules"]
    assert (rule["name"], rule["stale"], rule["op"]) == ("rule of bucket 5%", "", "rmsnorm")
    assert run(["cache", *command]) == 0
    assert "rule of bucket 5%" in capsys.readouterr().out


def test_a_rule_whose_kernel_is_gone_says_so_and_is_pruned(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(kernel="gone.kernel")
    assert "kernel gone.kernel is not installed any more" in answer(capsys, "list")["rules"][0]["stale"]
    assert "gone.kernel is not installed" in why(capsys, "9x9")["reason"]
    assert answer(capsys, "prune", "--dry-run")["rules"] == 1 and found()
    assert answer(capsys, "prune")["rules"] == 1 and not found()


@pytest.mark.parametrize("more", [(), ("--other-devices",)])
def test_a_rule_of_another_device_goes_only_when_asked_for(more: tuple[str, ...], home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(device_key=OTHER)
    assert answer(capsys, "prune", *more)["rules"] == len(more)
    assert len(found()) == 1 - len(more)


@pytest.mark.parametrize("more", [(), ("--serving",)])
def test_a_rule_that_holds_stays_with_its_run_unless_it_is_asked_for(
    more: tuple[str, ...], home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save(run_id="of the rule")
    counts = answer(capsys, "prune", "--older-than", "0", *more)
    assert (counts["rules"], counts["runs"]) == (len(more), len(more)) and len(found()) == 1 - len(more)
    assert run(["cache", "verify"]) == 0


def test_a_run_that_may_be_measuring_now_stays_for_what_it_will_find(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with open_store() as store:
        store.save_run(
            Run("going on", "tune", "tune", "kernelyard tune", identity("cpu"), started_at=stamp(datetime.now(UTC) - timedelta(hours=1)))
        )
    assert answer(capsys, "prune", "--older-than", "0", "--serving")["runs"] == 0
    with open_store() as store:
        assert [row["id"] for row in store.runs()] == ["going on"]


def test_a_store_of_before_rules_is_counted_as_it_is(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stored.save(source_hash="another")
    with open_store() as store:
        store.db.table("rules").drop()
    counts = answer(capsys, "prune", "--dry-run")
    assert (counts["choices"], counts["rules"]) == (1, 0)


def test_a_store_that_is_just_being_created_has_nothing_to_prune(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home.mkdir(exist_ok=True)
    database_path().touch()
    assert answer(capsys, "prune", "--dry-run")["choices"] == 0


def test_why_says_which_shapes_a_rule_serves_and_what_comes_before_it(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save()
    assert why(capsys, "9x9")["serves"]
    assert why(capsys, "9x8192")["reason"] == "cols is 8192, it was measured from 8 to 80"
    stored.save(stored.workload(9, 9))
    assert "before it comes stored choice of run run-1" in why(capsys, "9x9")["reason"]


def test_a_rule_that_can_not_be_read_is_broken_to_verify_and_told_by_all(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save()
    with open_store() as store:
        store.db.execute("update rules set pairs = '{}'")
        store.db.conn.commit()
    assert run(["cache", "verify"]) == 1
    assert "the rule of rmsnorm on cpu/" in capsys.readouterr().out
    assert "unreadable" in why(capsys, "9x9")["reason"]
    for command in (["list"], ["show", "rmsnorm"]):
        assert run(["cache", *command]) == 0
        assert "rule of a bucket" in capsys.readouterr().out


@pytest.mark.parametrize("rows", [1, [1], [{}], [{"loss": "x", "untuned_loss": 1}], [{"loss": -1, "untuned_loss": 0}]])
def test_evidence_of_another_form_is_not_shown_and_harms_nothing(rows: object, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save({"left_out": rows, "held_out": rows})
    assert run(["cache", "show", "rmsnorm"]) == 0
    assert "rule of bucket 5%" in capsys.readouterr().out


def test_an_export_says_that_rules_stay(home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save()
    assert run(["cache", "export", str(tmp_path / "choices.json")]) == 0
    assert "1 rules of buckets are not in the file" in capsys.readouterr().err


@pytest.mark.parametrize("command", [["list"], ["show", "rmsnorm"], ["prune"]])
def test_a_file_that_is_no_database_is_one_clear_line(command: list[str], home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home.mkdir(exist_ok=True)
    database_path().write_bytes(b"no database at all, " * 100)
    assert run(["cache", *command]) != 0
    assert "should not have happened" not in capsys.readouterr().err
