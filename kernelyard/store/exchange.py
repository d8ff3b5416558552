"""Choices as a JSON file that another store can take: written from entries, read back with nothing believed.

The format is `schemas/choices-1.json`. Reading checks the same by hand: a store that only imports needs no library for it.
"""

from __future__ import annotations

import json
import stat
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from kernelyard.errors import UsageError
from kernelyard.registry.spec import DeclarationError
from kernelyard.store import exchange_checks as checks
from kernelyard.store.records import Entry, mapping, now

FORMAT = "kernelyard-choices"
SCHEMA = 1
SCHEMA_FILE = Path(__file__).parent / "schemas" / f"choices-{SCHEMA}.json"
MOST_BYTES = 128 << 20
"""Of a file that is read: some 15000 choices with their evidence of 8 KB, and no more memory than a build takes."""
MOST_ROWS = 100_000

RUN_TEXTS = ("id", "title", "kind", "command", "device_key", "matrix_name", "matrix_hash", "commit_id", "started_at")
RUN_MAPPINGS = ("device", "versions")
CHOICE_TEXTS = (
    "op", "workload_key", "workload", "dtype", "device_key", "kernel", "contract_hash", "source_hash", "space_hash", "run_id", "reason",
    "created_at",
)  # fmt: skip
CHOICE_COLUMNS = (*CHOICE_TEXTS, "shapes", "mode", "config", "versions", "evidence")


@dataclass(frozen=True)
class Exported:
    """A file of choices that was checked: rows as the schema has them, and what the file itself is."""

    file: str
    sha256: str
    exported_at: str
    kernelyard: str
    runs: tuple[Mapping[str, Any], ...]
    choices: tuple[Mapping[str, Any], ...]


def content(entries: Sequence[Entry], runs: Sequence[Mapping[str, Any]], version: str) -> tuple[dict[str, Any], list[str]]:
    """The JSON object of these choices with the runs that made them; and a sentence for each that can't be told."""
    rows, problems = list[dict[str, Any]](), list[str]()
    for entry in entries:
        try:
            rows.append(choice_row(entry))
        except DeclarationError as error:
            problems.append(f"the choice of {entry.workload_key} on {entry.device_key} is left out: {error}")
    made = {row["run_id"] for row in rows}
    told = [run_row(run) for run in runs if run["id"] in made]
    return {"format": FORMAT, "schema": SCHEMA, "kernelyard": version, "exported_at": now(), "runs": told, "choices": rows}, problems


def choice_row(entry: Entry) -> dict[str, Any]:
    """One entry as the schema has it; raises DeclarationError where it can't be read, or holds what the schema does not allow."""
    choice = entry.choice
    if choice is None:
        raise DeclarationError(entry.problem)
    whole = {"workload": entry.workload, "dtype": entry.dtype, "created_at": entry.created_at, "shapes": dict(entry.shapes)}
    parts = {name: getattr(choice, name) for name in CHOICE_COLUMNS if name not in (*whole, "evidence")}
    row = {**parts, **whole, "config": dict(choice.config), "versions": dict(choice.versions), "evidence": dict(entry.evidence)}
    _choice(row)
    return row


def run_row(run: Mapping[str, Any]) -> dict[str, Any]:
    """A run of the store as the schema has it: without the uuid, which names a host or the very device."""
    row: dict[str, Any] = {name: run[name] or "" for name in RUN_TEXTS}
    for name in RUN_MAPPINGS:
        row[name] = {key: value for key, value in mapping(run[name] or "{}", name).items() if key != "uuid"}
    _run(row)
    return row


def read(path: Path) -> Exported:
    """A file of choices, every value of it checked; raises UsageError with what is wrong first. Runs nothing of what it names."""
    raw = _bytes(path)
    try:
        found = _parsed(raw)
        _versioned(found)
        checks.keys(found, "the file", ("format", "schema", "kernelyard", "exported_at", "runs", "choices"))
        for name in ("kernelyard", "exported_at"):
            checks.text(found[name], name)
        runs, rows = (_checked(found[name], name, check) for name, check in (("runs", _run), ("choices", _choice)))
        _whole(runs, rows)
    except DeclarationError as error:
        raise UsageError(f"{path} is no file of choices: {error}.", do="`kernelyard cache export FILE` writes one.") from error
    return Exported(path.name, sha256(raw).hexdigest(), found["exported_at"], found["kernelyard"], runs, rows)


def _bytes(path: Path) -> bytes:
    try:
        about = path.stat()
        if not stat.S_ISREG(about.st_mode):
            raise UsageError(f"{path} is no file.")
        if about.st_size > MOST_BYTES:
            most = f"At most {MOST_BYTES >> 20} MiB are read."
            raise UsageError(f"{path} has {about.st_size >> 20} MiB.", exists=most, do="Export fewer choices: `cache export --op OP`.")
        return path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path} can't be read: {error.strerror}.") from error


def _parsed(raw: bytes) -> dict[str, Any]:
    try:
        found = json.loads(raw.decode("utf-8"), parse_constant=_no_constant, object_pairs_hook=_no_repeats)
        json.dumps(found, ensure_ascii=False, allow_nan=False).encode("utf-8")  # 1e999 is infinity, "\ud800" no text
    except RecursionError as error:
        raise DeclarationError("it is nested too deeply") from error
    except ValueError as error:
        raise DeclarationError(f"it is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise DeclarationError(f"it holds {checks.shown(found)}, not an object")
    return found


def _no_constant(name: str) -> object:
    raise ValueError(f"{name} is no number")


def _no_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(name for name in names if names.count(name) > 1)!r} stands twice in an object")
    return found


def _versioned(found: Mapping[str, Any]) -> None:
    if found.get("format") != FORMAT:
        told = "T4 holds trials and no choices" if "schema_version" in found and "results" in found else f"its format is not {FORMAT!r}"
        raise DeclarationError(told)
    schema = found.get("schema")
    if type(schema) is int and schema > SCHEMA:
        raise UsageError(f"the file has schema {schema}, of a newer kernelyard; this one reads {SCHEMA}.", do="Upgrade kernelyard.")
    if type(schema) is not int or schema != SCHEMA:
        raise DeclarationError(f"its schema is {checks.shown(schema)}, not {SCHEMA}")


def _checked(rows: object, name: str, check: Callable[[Mapping[str, Any]], None]) -> tuple[Mapping[str, Any], ...]:
    if not isinstance(rows, list) or len(rows) > MOST_ROWS:
        raise DeclarationError(f"{name} is {checks.shown(rows)}, not a list of at most {MOST_ROWS}")
    for place, row in enumerate(rows):
        try:
            if not isinstance(row, dict):
                raise DeclarationError(f"it is {checks.shown(row)}, not an object")
            check(row)
        except DeclarationError as error:
            raise DeclarationError(f"{name}[{place}]: {error}") from error
    return tuple(rows)


def _run(row: Mapping[str, Any]) -> None:
    checks.keys(row, "it", (*RUN_TEXTS, *RUN_MAPPINGS))
    for name in RUN_TEXTS:
        checks.text(row[name], name)
    for name in RUN_MAPPINGS:
        checks.mapping(row[name], name, checks.text)


def _choice(row: Mapping[str, Any]) -> None:
    checks.keys(row, "it", CHOICE_COLUMNS)
    for name in CHOICE_TEXTS:
        checks.text(row[name], name)
    if row["mode"] not in ("device", "call"):
        raise DeclarationError(f"mode is {checks.shown(row['mode'])}, not 'device' or 'call'")
    checks.mapping(row["config"], "config", checks.scalar)
    checks.mapping(row["versions"], "versions", checks.text)
    checks.mapping(row["shapes"], "shapes", checks.sizes)
    checks.evidence(row["evidence"])


def _whole(runs: Sequence[Mapping[str, Any]], rows: Sequence[Mapping[str, Any]]) -> None:
    """What a schema can't say: keys that point, agree and stand once."""
    ids = [run["id"] for run in runs]
    keys = [key_of(row) for row in rows]
    if len(set(ids)) < len(ids) or len(set(keys)) < len(keys):
        raise DeclarationError("a run or the choice of a workload stands twice")
    for row, key in zip(rows, keys, strict=True):
        if row["run_id"] and row["run_id"] not in ids:
            raise DeclarationError(f"the choice of {key[1]} is of run {row['run_id']!r}, which is not in the file")
        kind = row["device_key"].partition("/")[0]
        if not row["workload_key"].startswith(f"{row['op']}[") or not row["workload_key"].endswith(f"]@{kind}"):
            raise DeclarationError(f"workload {key[1]!r} is not one of {row['op']!r} on {row['device_key']!r}")


def key_of(row: Mapping[str, Any]) -> tuple[str, str, str, str]:
    """Under which key the store keeps a choice."""
    return row["op"], row["workload_key"], row["device_key"], row["mode"]
