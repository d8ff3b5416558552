"""Rules of buckets: one for each op, kind of device and mode, a later one in its place. Read to serve calls without ever failing one."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kernelyard.registry.rule import Measured, Rule
from kernelyard.registry.spec import Choice, DeclarationError, require
from kernelyard.store.choices import connect_read_only, warn_once
from kernelyard.store.database import open_store
from kernelyard.store.files import database_path, failures
from kernelyard.store.records import dump, mapping, now

KEY = ("op", "device_key", "mode")
COLUMNS = (*KEY, "percent", "matrix_name", "matrix_hash", "pairs", "measured", "run_id", "evidence", "created_at")


@dataclass(frozen=True)
class RuleEntry:
    """A stored rule with what it was made on; `rule` is None and `problem` says why where the row can't be read."""

    op: str
    device_key: str
    mode: str
    rule: Rule | None
    problem: str
    evidence: Mapping[str, Any]
    created_at: str


def save(rule: Rule, evidence: Mapping[str, Any], path: Path | None = None) -> None:
    """Puts a rule in the place of the one its op had on that kind of device; raises StoreFailed."""
    row: dict[str, Any] = {name: getattr(rule, name) for name in (*KEY, "percent", "matrix_name", "matrix_hash")}
    row |= {
        "pairs": dump([{**asdict(pair), "config": dict(pair.config), "versions": dict(pair.versions)} for pair in rule.pairs]),
        "measured": dump([asdict(one) for one in rule.measured]),
        "run_id": rule.run_id or None,
        "evidence": dump(dict(evidence)),
        "created_at": now(),
    }
    updates = ", ".join(f"{name} = excluded.{name}" for name in row)
    columns, marks = ", ".join(row), ", ".join("?" for _ in row)
    sql = f"insert into rules ({columns}) values ({marks}) on conflict ({', '.join(KEY)}) do update set {updates}"
    with open_store(path) as store, failures(store.path), store.db.atomic():
        store.db.execute(sql, list(row.values()))


def remove(rule: Rule, path: Path | None = None) -> None:
    """Takes away what is stored for this op, device, mode and matrix, as it was measured to be no gain; raises StoreFailed.

    A rule of another matrix stays: nothing was found out about it.
    """
    names = (*KEY, "matrix_hash")
    with open_store(path) as store, failures(store.path), store.db.atomic():
        store.db.execute(
            f"delete from rules where {' and '.join(f'{name} = ?' for name in names)}", [getattr(rule, name) for name in names]
        )


def find(op: str, device_key: str, mode: str = "device", path: Path | None = None) -> Rule | None:
    """The rule stored under a key, valid or not (the registry compares hashes); None where there is none, or none that can be read."""
    path = path or database_path()
    if not path.is_file():
        return None
    try:
        found = _read(path, " and ".join(f"{name} = ?" for name in KEY), (op, device_key, mode))
    except sqlite3.Error as error:
        if "no such table" not in str(error):  # made by a version that stored none
            warn_once(f"the store {path} can't be read ({error}); no rule serves")
        return None
    if found and found[0].problem:
        warn_once(f"the rule of {op} in {path} can't be read: {found[0].problem}; make it again with tune --bucket")
    return found[0].rule if found else None


def listed(op: str | None = None, path: Path | None = None) -> list[RuleEntry]:
    """Every rule, or those of one op, damaged ones with their problem; none where there is no store, or one of a version without rules.

    Raises StoreFailed for a store that can't be read.
    """
    path = path or database_path()
    if not path.is_file():
        return []
    with failures(path):
        try:
            return _read(path, "? is null or op = ?", (op, op))
        except sqlite3.OperationalError as error:
            if "no such table" not in str(error):
                raise
            return []


def _read(path: Path, where: str, values: tuple[str | None, ...]) -> list[RuleEntry]:
    with closing(connect_read_only(path)) as connection:
        rows = connection.execute(f"select {', '.join(COLUMNS)} from rules where {where} order by op, id", values).fetchall()
    return [_entry(dict(zip(COLUMNS, row, strict=True))) for row in rows]


def _entry(values: Mapping[str, Any]) -> RuleEntry:
    op, device_key, mode = (str(values[name]) for name in KEY)
    created_at = str(values["created_at"] or "")
    try:
        return RuleEntry(op, device_key, mode, _rule(values), "", mapping(values["evidence"], "evidence"), created_at)
    except (ValueError, TypeError, KeyError, RecursionError, OverflowError) as error:
        return RuleEntry(op, device_key, mode, None, f"{type(error).__name__}: {error}", {}, created_at)


def _rule(values: Mapping[str, Any]) -> Rule:
    pairs = tuple(_pair(row) for row in _list(values["pairs"], "pairs"))
    measured = tuple(_measured(row) for row in _list(values["measured"], "measured"))
    texts = {name: str(values[name]) for name in (*KEY, "matrix_name", "matrix_hash")}
    return Rule(**texts, percent=float(values["percent"]), pairs=pairs, measured=measured, run_id=values["run_id"] or "")


def _pair(row: Mapping[str, Any]) -> Choice:
    """A pair whose every part has the type that dispatch takes for granted."""
    config, versions = (_object(row[name], name) for name in ("config", "versions"))
    for name, value in config.items():
        require(isinstance(value, int | float | str | bool), f"config value {name}={value!r} is not a plain value")
    _texts({**{name: value for name, value in row.items() if name not in ("config", "versions")}, **versions})
    return Choice(**row)


def _measured(row: Mapping[str, Any]) -> Measured:
    one = Measured(**{**row, "dims": tuple((str(name), int(size)) for name, size in row["dims"])})
    require(all(size >= 0 for _, size in one.dims), f"the sizes of {one.label} are {dict(one.dims)}, not >= 0")
    _texts({"form": one.form, "label": one.label})
    return one


def _texts(row: Mapping[str, Any]) -> None:
    for name, value in row.items():
        require(isinstance(value, str), f"{name} is {value!r}, not text")


def _object(value: Any, column: str) -> dict[str, Any]:
    require(isinstance(value, dict), f"{column} is {value!r}, not an object")
    return dict(value)


def _list(text: object, column: str) -> list[Any]:
    value = json.loads(str(text))
    if not isinstance(value, list):
        raise DeclarationError(f"{column} is {str(text)[:60]!r}, not a JSON list")
    return value
