"""The finished trials that Optuna keeps in the store's file, read as rows: no Optuna is imported, nothing is changed.

A study is one kernel on one workload under everything that its times depend on, which stands in its attribute `key`.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernelyard.registry.spec import DeclarationError, Status, Timing
from kernelyard.store.choices import connect_read_only, tables
from kernelyard.store.files import database_path, failures
from kernelyard.store.records import mapping

SQL = """select k.value_json, t.trial_id, t.datetime_complete, r.value_json
         from trials t join studies s on s.study_id = t.study_id
         join study_user_attributes k on k.study_id = s.study_id and k.key = 'key'
         join trial_user_attributes r on r.trial_id = t.trial_id and r.key = 'result'
         where t.state in ('COMPLETE', 'PRUNED') order by s.study_id, t.number"""
PARAMETERS = "select trial_id, param_name, param_value, distribution_json from trial_params order by param_id"
KEY_TEXTS = ("op", "label", "workload", "kernel", "device", "mode", "protocol", "contract", "source", "space")
TABLES = {"studies", "study_user_attributes", "trials", "trial_user_attributes", "trial_params"}


@dataclass(frozen=True)
class Trial:
    """One finished trial. `key` is its study's; `parameters` are values, or with `places` places in the order of the kernel's space."""

    key: Mapping[str, Any]
    parameters: Mapping[str, Any]
    places: bool
    result: Mapping[str, Any]
    timing: Timing | None
    completed: str


def listed(op: str | None = None, path: Path | None = None) -> tuple[list[Trial], int]:
    """Every finished trial in the store's own file, or those of one op, and how many can't be read. Raises StoreFailed."""
    path = path or database_path()
    if not path.is_file():
        return [], 0
    with failures(path), closing(connect_read_only(path)) as connection:
        if not tables(connection) >= TABLES:
            return [], 0
        parameters = _parameters(connection)
        rows = connection.execute(SQL).fetchall()
    found = [_trial(key, parameters.get(trial, {}), result, str(when)) for key, trial, when, result in rows]
    return [one for one in found if one is not None and op in (None, one.key["op"])], found.count(None)


def _parameters(connection: sqlite3.Connection) -> dict[int, dict[str, Any] | None]:
    """Values by trial and name, None where one can't be read; Optuna stores a category as its place among `choices`."""
    found, broken = dict[int, dict[str, Any]](), set[int]()
    for trial, name, value, distribution in connection.execute(PARAMETERS):
        try:
            choices = json.loads(distribution)["attributes"].get("choices")
            found.setdefault(trial, {})[name] = int(value) if choices is None else choices[int(value)]
        except (ValueError, KeyError, TypeError, IndexError, AttributeError):
            broken.add(trial)
    return {**found, **dict.fromkeys(broken)}


def _trial(key_text: str, parameters: Mapping[str, Any] | None, result_text: str, completed: str) -> Trial | None:
    """None for one that can't be read."""
    key = _key(key_text)
    try:
        result = mapping(result_text, "result")
        Status(result["status"])
        timing = Timing(**result["timing"]) if result.get("timing") else None
    except (ValueError, KeyError, TypeError):  # DeclarationError is a ValueError
        return None
    if not key or parameters is None:
        return None
    return Trial(key, parameters, key.get("coding") == "places", result, timing, completed)


def _key(text: str) -> Mapping[str, Any]:
    """What a study of the tuner says of itself; empty where this is none."""
    try:
        key = mapping(text, "key")
    except DeclarationError:
        return {}
    texts = all(isinstance(key.get(name), str) for name in KEY_TEXTS)
    return key if texts and isinstance(key.get("versions"), dict) else {}


@dataclass(frozen=True)
class Study:
    """One search as Optuna keeps it: its name, all that its times depend on, and how many of its trials are finished."""

    name: str
    key: Mapping[str, Any]
    finished: int


STUDIES = """select s.study_name, k.value_json, (select count(*) from trials t join trial_user_attributes r on r.trial_id = t.trial_id
             and r.key = 'result' where t.study_id = s.study_id) from studies s
             join study_user_attributes k on k.study_id = s.study_id and k.key = 'key' order by s.study_id"""


def studies(path: Path | None = None) -> list[Study]:
    """Every search in the store's own file that says what it was of; another's is none of ours to judge. Raises StoreFailed."""
    path = path or database_path()
    if not path.is_file():
        return []
    with failures(path), closing(connect_read_only(path)) as connection:
        rows = connection.execute(STUDIES).fetchall() if tables(connection) >= TABLES else []
    return [Study(name, key, finished) for name, text, finished in rows if (key := _key(text))]
