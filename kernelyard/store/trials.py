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

from kernelyard.store.choices import connect_read_only
from kernelyard.store.files import database_path, failures

SQL = """select s.study_id, k.value_json, t.trial_id, t.datetime_complete, r.value_json
         from trials t join studies s on s.study_id = t.study_id
         join study_user_attributes k on k.study_id = s.study_id and k.key = 'key'
         join trial_user_attributes r on r.trial_id = t.trial_id and r.key = 'result'
         where t.state in ('COMPLETE', 'PRUNED') order by s.study_id, t.number"""
PARAMETERS = "select trial_id, param_name, param_value, distribution_json from trial_params order by param_id"
TABLES = {"studies", "study_user_attributes", "trials", "trial_user_attributes", "trial_params"}


@dataclass(frozen=True)
class Trial:
    """One finished trial. `key` is its study's; `parameters` are values, or with `places` places in the order of the kernel's space."""

    key: Mapping[str, Any]
    parameters: Mapping[str, Any]
    places: bool
    result: Mapping[str, Any]
    completed: str


def listed(op: str | None = None, path: Path | None = None) -> list[Trial]:
    """Every finished trial in the store's own file, or those of one op; none where nothing was searched. Raises StoreFailed."""
    path = path or database_path()
    if not path.is_file():
        return []
    with failures(path), closing(connect_read_only(path)) as connection:
        tables = {name for (name,) in connection.execute("select name from sqlite_master where type = 'table'")}
        if not tables >= TABLES:
            return []
        parameters = _parameters(connection)
        rows = connection.execute(SQL).fetchall()
    found = [_trial(json.loads(key), parameters.get(trial, {}), json.loads(result), str(when)) for _, key, trial, when, result in rows]
    return [one for one in found if op in (None, one.key.get("op"))]


def _parameters(connection: sqlite3.Connection) -> dict[int, dict[str, Any]]:
    """Values by trial and name; Optuna stores a category as its place among `choices`."""
    found: dict[int, dict[str, Any]] = {}
    for trial, name, value, distribution in connection.execute(PARAMETERS):
        choices = json.loads(distribution)["attributes"].get("choices")
        found.setdefault(trial, {})[name] = int(value) if choices is None else choices[int(value)]
    return found


def _trial(key: Mapping[str, Any], parameters: Mapping[str, Any], result: Mapping[str, Any], completed: str) -> Trial:
    return Trial(key, parameters, key.get("coding") == "places", result, completed)


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
    """Every search in the store's own file that says what it was of. Raises StoreFailed."""
    path = path or database_path()
    if not path.is_file():
        return []
    with failures(path), closing(connect_read_only(path)) as connection:
        tables = {name for (name,) in connection.execute("select name from sqlite_master where type = 'table'")}
        rows = connection.execute(STUDIES).fetchall() if tables >= TABLES else []
    return [Study(name, json.loads(key), finished) for name, key, finished in rows]
