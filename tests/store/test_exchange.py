"""The exchanged files: choices by the schema that is shipped, which the reader holds to as well; trials by T4."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kernelyard.errors import UsageError
from kernelyard.store import importing
from kernelyard.store.choices import listed
from kernelyard.store.database import open_store
from kernelyard.store.exchange import SCHEMA_FILE, Exported, content, read
from tests.store.test_choices import EVIDENCE, choice, save

jsonschema = pytest.importorskip("jsonschema", reason="the dev extra has it")
VALIDATOR = jsonschema.Draft202012Validator

TIMES = {"median": 4.0, "low": 3.9, "high": 4.1}
WHOLE: dict[str, Any] = {
    **EVIDENCE, "call_time_us": None, "eager_us": 9.0, "compile_us": None, "speedup_vs_eager": 2.5, "speedup_vs_compile": None,
    "baselines": {"torch.eager": {"device_us": 9.0, "call_us": None}}, "percent_of_ceiling": 61.0, "protocol": "3", "torch": "2.13.0",
    "finals": [{"kernel": "torch.eager", "device_time_us": TIMES, "config": {}}, {"kernel": "cpp.onepass", "device_time_us": None}],
    "skipped": {"cuda.row": "no GPU"}, "searched": {"cpp.onepass": {"budget": 8, "digest": "d", "sampler": "tpe", "stopped": ""}},
}  # fmt: skip


@pytest.fixture
def whole(tmp_path: Path) -> dict[str, Any]:
    """What is exported of a store with one choice."""
    path = tmp_path / "from.db"
    save(path, choice(), WHOLE)
    with open_store(path) as store:
        found, problems = content(store.choices(), store.runs(), "0.1.0")
    assert problems == []
    return found


def schema() -> dict[str, Any]:
    return dict(json.loads(SCHEMA_FILE.read_text()))


def test_the_schema_is_one_of_its_draft() -> None:
    VALIDATOR.check_schema(schema())


def test_what_is_exported_is_as_the_schema_says(whole: dict[str, Any]) -> None:
    VALIDATOR(schema()).validate(whole)


WRONG: list[tuple[tuple[str | int, ...], object]] = [
    (("format",), "other"), (("schema",), 2), (("exported_at",), None), (("runs",), {}), (("choices",), None), (("more",), 1),
    (("runs", 0, "id"), ""), (("runs", 0, "command"), 5), (("runs", 0, "device"), []), (("runs", 0, "versions"), {"torch": 2}),
    (("runs", 0, "more"), ""), (("choices", 0), []), (("choices", 0, "more"), ""), (("choices", 0, "op"), ""),
    (("choices", 0, "kernel"), None), (("choices", 0, "reason"), "\x1b[2J"), (("choices", 0, "reason"), "\x9b"),
    (("choices", 0, "reason"), "x" * 20001), (("choices", 0, "mode"), "both"), (("choices", 0, "dtype"), ""),
    (("choices", 0, "config"), []), (("choices", 0, "config", "BLOCK"), None), (("choices", 0, "config", "BLOCK"), [1]),
    (("choices", 0, "config", "\x07"), 1), (("choices", 0, "versions", "torch"), 2.13), (("choices", 0, "shapes"), [1]),
    (("choices", 0, "shapes", "x"), [-1]), (("choices", 0, "shapes", "x"), ["1"]), (("choices", 0, "evidence"), None),
    (("choices", 0, "evidence"), {}), (("choices", 0, "evidence", "device_time_us"), None),
    (("choices", 0, "evidence", "device_time_us", "median"), 0), (("choices", 0, "evidence", "device_time_us", "median"), True),
    (("choices", 0, "evidence", "device_time_us", "low"), "3"), (("choices", 0, "evidence", "call_time_us"), {"median": -1}),
    (("choices", 0, "evidence", "eager_us"), "9"), (("choices", 0, "evidence", "compile_us"), 1e13),
    (("choices", 0, "evidence", "baselines"), []), (("choices", 0, "evidence", "baselines", "torch.eager"), {"device_us": 1}),
    (("choices", 0, "evidence", "finals"), 5), (("choices", 0, "evidence", "finals", 0), {}),
    (("choices", 0, "evidence", "finals", 0, "device_time_us"), 4.0), (("choices", 0, "evidence", "skipped"), {"cuda.row": 1}),
    (("choices", 0, "evidence", "searched", "cpp.onepass"), 1), (("choices", 0, "evidence", "searched", "cpp.onepass", "budget"), "8"),
    (("choices", 0, "evidence", "imported"), {"file": 1}), (("choices", 0, "evidence", "protocol"), 3),
]  # fmt: skip


@pytest.mark.parametrize(("place", "value"), WRONG, ids=lambda value: str(value)[:60])
def test_what_the_schema_refuses_the_reader_refuses(whole: dict[str, Any], tmp_path: Path, place: tuple[Any, ...], value: object) -> None:
    wrong = copy.deepcopy(whole)
    at = wrong
    for step in place[:-1]:
        at = at[step]
    at[place[-1]] = value
    assert not VALIDATOR(schema()).is_valid(wrong)
    path = tmp_path / "wrong.json"
    path.write_text(json.dumps(wrong))
    with pytest.raises(UsageError):
        read(path)


@pytest.mark.parametrize("of", ["the file", "a run", "a choice"])
def test_no_key_may_be_missing(whole: dict[str, Any], tmp_path: Path, of: str) -> None:
    keys = {"the file": whole, "a run": whole["runs"][0], "a choice": whole["choices"][0]}[of]
    for name in list(keys):
        value = keys.pop(name)
        assert not VALIDATOR(schema()).is_valid(whole), name
        (tmp_path / "less.json").write_text(json.dumps(whole))
        with pytest.raises(UsageError):
            read(tmp_path / "less.json")
        keys[name] = value


def exported(whole: dict[str, Any], tmp_path: Path) -> Exported:
    path = tmp_path / "choices.json"
    path.write_text(json.dumps(whole))
    return read(path)


def test_a_choice_comes_back_as_it_was_with_its_time_and_its_origin(whole: dict[str, Any], tmp_path: Path) -> None:
    found = exported(whole, tmp_path)
    (entry,) = importing.entries(found)
    with open_store(tmp_path / "to.db") as store:
        assert importing.take(store, found, [importing.Taken(entry, None)]) == []
        (back,) = store.choices()
    (before,) = listed(path=tmp_path / "from.db")
    assert back == replace(before, evidence={**before.evidence, "imported": back.evidence["imported"]})
    assert back.evidence["imported"]["file"] == "choices.json" and importing.same(back, before)


def test_a_choice_that_was_tuned_while_the_file_was_judged_stays(whole: dict[str, Any], tmp_path: Path) -> None:
    found = exported(whole, tmp_path)
    (entry,) = importing.entries(found)
    save(tmp_path / "to.db", choice("torch.eager", n=1))
    with open_store(tmp_path / "to.db") as store:
        assert importing.take(store, found, [importing.Taken(entry, None)]) == [entry]
        assert [one.choice and one.choice.kernel for one in store.choices()] == ["torch.eager"]


def test_nothing_is_half_imported(whole: dict[str, Any], tmp_path: Path) -> None:
    found = exported(whole, tmp_path)
    (entry,) = importing.entries(found)
    with open_store(tmp_path / "to.db") as store:
        other = replace(choice(), workload_key="other")
        broken = replace(entry, workload_key="other", choice=other, evidence={})  # which no row can be made of
        with pytest.raises(ValueError, match="time"):
            importing.take(store, found, [importing.Taken(entry, None), importing.Taken(broken, None)])
        assert store.choices() == [] and store.runs() == []
