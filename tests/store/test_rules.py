"""Rules in the store: one an op and kind of device, read back as it was written, and never a crash."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from kernelyard.registry.rule import Measured, Rule
from kernelyard.registry.spec import Choice, DeclarationError
from kernelyard.store import rules
from kernelyard.store.database import open_store

PAIR = Choice("scale", "scale[x=4x64]@cpu", "cpu/a", "device", "cpp.one", {"threads": 2, "fast": True}, "c", "s", "p", {"gcc": "13"})
RULE = Rule("scale", "cpu/a", "device", 5.0, "performance/cpu", "h", (PAIR,), (Measured("scale[..]", (("rows", 4),), "4 fp32", 0, 0.03),))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


def spoil(path: Path, column: str, value: str) -> None:
    with open_store(path) as store:
        store.db.execute(f"update rules set {column} = ?", [value])
        store.db.conn.commit()


def test_a_rule_comes_back_as_it_was_with_its_evidence(path: Path) -> None:
    rules.save(RULE, {"left_out": [1]}, path)
    assert rules.find("scale", "cpu/a", path=path) == RULE
    (entry,) = rules.listed("scale", path)
    assert entry.evidence == {"left_out": [1]} and entry.problem == "" and entry.created_at


def test_a_later_rule_takes_the_place_of_the_one_before(path: Path) -> None:
    rules.save(RULE, {}, path)
    rules.save(Rule("scale", "cpu/a", "device", 2.0, "mine", "g", RULE.pairs, RULE.measured), {}, path)
    assert [entry.rule.percent for entry in rules.listed("scale", path) if entry.rule] == [2.0]


def test_a_rule_is_found_under_its_own_op_device_and_mode_alone(path: Path) -> None:
    rules.save(RULE, {}, path)
    asked = (("other", "cpu/a", "device"), ("scale", "cpu/b", "device"), ("scale", "cpu/a", "call"))
    assert [rules.find(*key, path) for key in asked] == [None, None, None]


def test_without_a_store_and_after_its_removal_there_is_none(path: Path) -> None:
    assert rules.find("scale", "cpu/a", path=path) is None and rules.listed("scale", path) == [] and not path.exists()
    rules.save(RULE, {}, path)
    rules.remove(replace(RULE, matrix_hash="of another matrix"), path)
    assert rules.find("scale", "cpu/a", path=path) == RULE
    rules.remove(RULE, path)
    assert rules.find("scale", "cpu/a", path=path) is None


def test_a_store_of_before_rules_has_none(path: Path) -> None:
    with open_store(path) as store:
        store.db.table("rules").drop()
    assert rules.find("scale", "cpu/a", path=path) is None and rules.listed("scale", path) == []


@pytest.mark.parametrize(
    "column, value",
    [("pairs", "[{"), ("pairs", "{}"), ("pairs", "[]"), ("measured", '[{"form": 1}]'), ("measured", "[7]"), ("evidence", "x")],
)
def test_a_damaged_rule_is_a_miss_that_is_said(path: Path, column: str, value: str, capsys: pytest.CaptureFixture[str]) -> None:
    rules.save(RULE, {}, path)
    spoil(path, column, value)
    assert rules.find("scale", "cpu/a", path=path) is None
    assert "make it again with tune --bucket" in capsys.readouterr().err
    (entry,) = rules.listed("scale", path)
    assert entry.rule is None and entry.problem


@pytest.mark.parametrize(
    "column, before, after",
    [
        ("pairs", '"config": {"fast": true, "threads": 2}', '"config": []'),
        ("pairs", '"versions": {"gcc": "13"}', '"versions": ["gcc"]'),
        ("pairs", '"kernel": "cpp.one"', '"kernel": ["cpp.one"]'),
        ("measured", '["rows", 4]', '["rows", Infinity]'),
        ("measured", '["rows", 4]', '["rows", -1]'),
        ("measured", '"label": "4 fp32"', '"label": 4'),
    ],
)
def test_a_part_of_another_kind_is_damage_and_no_crash(path: Path, column: str, before: str, after: str) -> None:
    rules.save(RULE, {}, path)
    with open_store(path) as store:
        (text,) = store.db.execute(f"select {column} from rules").fetchone()
    assert before in text
    spoil(path, column, text.replace(before, after))
    assert rules.find("scale", "cpu/a", path=path) is None and rules.listed("scale", path)[0].problem


def test_a_config_with_a_value_that_is_none_is_damage(path: Path) -> None:
    rules.save(RULE, {}, path)
    with open_store(path) as store:
        (text,) = store.db.execute("select pairs from rules").fetchone()
    spoil(path, "pairs", text.replace('"threads": 2', '"threads": null'))
    assert "threads=None" in rules.listed("scale", path)[0].problem


def test_evidence_that_is_no_number_is_refused(path: Path) -> None:
    with pytest.raises(DeclarationError, match="finite"):
        rules.save(RULE, {"loss": float("nan")}, path)
