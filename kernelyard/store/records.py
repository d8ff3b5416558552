"""Frozen records of the store, and how they become rows and come back. A row that can't come back says why."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from kernelyard.registry.spec import Choice, Config, DeclarationError, DeviceIdentity, Timing, Workload, config_key, require


@dataclass(frozen=True)
class Run:
    """One command that measured something: what was asked, where, and with which versions."""

    id: str
    kind: str
    title: str
    command: str
    device: DeviceIdentity
    matrix_name: str = ""
    matrix_hash: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    commit: str = ""
    started_at: str = ""


@dataclass(frozen=True)
class Measurement:
    """One time of one kernel and config on one workload. `stage` is 'trial', 'finals' or 'bench'."""

    run_id: str
    op: str
    workload_key: str
    workload: str
    kernel: str
    config: Config
    device_key: str
    timing: Timing
    stage: str
    protocol: str
    matrix_hash: str = ""
    source_hash: str = ""


@dataclass(frozen=True)
class Entry:
    """A stored choice with its evidence; `choice` is None and `problem` says why where the row can't be read."""

    op: str
    workload_key: str
    device_key: str
    mode: str
    workload: str
    choice: Choice | None
    problem: str
    evidence: Mapping[str, Any]
    created_at: str
    shapes: Mapping[str, list[int]] = field(default_factory=dict)
    dtype: str = ""


def now() -> str:
    """The time in UTC, to the second, as the store writes it."""
    return stamp(datetime.now(UTC))


def stamp(moment: datetime) -> str:
    """A moment in UTC as the store writes it."""
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def dump(value: object) -> str:
    """JSON text; raises DeclarationError for NaN and infinity, which are no result."""
    try:
        return json.dumps(value, sort_keys=True, allow_nan=False)
    except ValueError as error:
        raise DeclarationError(f"a stored value must be finite: {error}") from error


def run_row(run: Run) -> dict[str, Any]:
    """The row of a run."""
    return {
        "id": run.id,
        "title": run.title,
        "kind": run.kind,
        "command": run.command,
        "device_key": run.device.key(),
        "device": dump({name: getattr(run.device, name) for name in ("type", "name", "capability", "driver", "uuid")}),
        "matrix_name": run.matrix_name,
        "matrix_hash": run.matrix_hash,
        "versions": dump(dict(run.versions)),
        "commit_id": run.commit,
        "started_at": run.started_at or now(),
    }


def measurement_row(item: Measurement) -> dict[str, Any]:
    """The row of a measurement; its Timing has already refused what is not a finite number."""
    timing = item.timing
    return {
        "run_id": item.run_id,
        "op": item.op,
        "workload": item.workload,
        "workload_key": item.workload_key,
        "kernel": item.kernel,
        "config": config_key(item.config),
        "device_key": item.device_key,
        "stage": item.stage,
        "mode": timing.mode,
        "clock": timing.clock,
        "protocol": item.protocol,
        "median_us": timing.median_us,
        "low_us": timing.low_us,
        "high_us": timing.high_us,
        "batches": timing.batches,
        "calls": timing.calls,
        "noisy": timing.noisy,
        "matrix_hash": item.matrix_hash,
        "source_hash": item.source_hash,
        "created_at": now(),
    }


def choice_row(choice: Choice, workload: Workload, evidence: Mapping[str, Any]) -> dict[str, Any]:
    """The row of a choice; raises DeclarationError where the winner's time is missing, zero or not finite."""
    label, shapes = workload.label(), workload.shapes
    return entry_row(Entry(*_key(choice), label, choice, "", evidence, now(), shapes, workload.dtype))


def entry_row(entry: Entry) -> dict[str, Any]:
    """The row of a readable entry, as `choice_row`; with the time that the entry has."""
    choice, evidence = entry.choice, entry.evidence
    if choice is None:
        raise DeclarationError(f"an entry that can't be read can't be stored: {entry.problem}")
    median = dict(evidence.get("device_time_us") or {}).get("median")
    valid = isinstance(median, int | float) and math.isfinite(median) and median > 0
    require(valid, f"a choice needs the winner's time, evidence['device_time_us']['median'] > 0, not {median!r}")
    return {
        "title": f"{choice.op} {entry.workload}",
        "op": choice.op,
        "workload_key": choice.workload_key,
        "workload": entry.workload,
        "shapes": dump(dict(entry.shapes)),
        "dtype": entry.dtype,
        "device_key": choice.device_key,
        "mode": choice.mode,
        "kernel": choice.kernel,
        "config": config_key(choice.config),
        "contract_hash": choice.contract_hash,
        "source_hash": choice.source_hash,
        "space_hash": choice.space_hash,
        "versions": dump(dict(choice.versions)),
        "run_id": choice.run_id or None,
        "reason": choice.reason,
        "evidence": dump(dict(evidence)),
        "created_at": entry.created_at,
    }


def _key(choice: Choice) -> tuple[str, str, str, str]:
    return choice.op, choice.workload_key, choice.device_key, choice.mode


CHOICE_COLUMNS = (
    "op", "workload_key", "device_key", "mode", "kernel", "config", "contract_hash", "source_hash", "space_hash",
    "versions", "run_id", "reason", "workload", "evidence", "created_at", "shapes", "dtype",
)  # fmt: skip


def entry_of(row: tuple[Any, ...]) -> Entry:
    """An Entry from a row of CHOICE_COLUMNS; damage becomes its `problem`."""
    values = dict(zip(CHOICE_COLUMNS, row, strict=True))
    texts = {name: str(values[name] or "") for name in ("op", "workload_key", "device_key", "mode", "workload", "created_at", "dtype")}
    try:
        choice, evidence, shapes = _choice(values), mapping(values["evidence"], "evidence"), mapping(values["shapes"], "shapes")
        problem = ""
    except ValueError as error:
        choice, evidence, shapes, problem = None, {}, {}, str(error)
    return Entry(
        texts["op"], texts["workload_key"], texts["device_key"], texts["mode"], texts["workload"],
        choice, problem, evidence, texts["created_at"], shapes, texts["dtype"],
    )  # fmt: skip


def _choice(values: Mapping[str, Any]) -> Choice:
    config, versions = mapping(values["config"], "config"), mapping(values["versions"], "versions")
    for name, value in config.items():
        require(isinstance(value, int | float | str | bool), f"config value {name}={value!r} is not a plain value")
    names = ("op", "workload_key", "device_key", "mode", "kernel", "contract_hash", "source_hash", "space_hash")
    for name in names:
        require(isinstance(values[name], str), f"{name} is {values[name]!r}, not text")
    texts = {name: values[name] for name in names}
    versions = {name: str(value) for name, value in versions.items()}
    return Choice(**texts, config=config, versions=versions, run_id=values["run_id"] or "", reason=str(values["reason"] or ""))


def mapping(text: object, column: str) -> dict[str, Any]:
    """A JSON object from a column; raises DeclarationError with the column's name for anything else."""
    require(isinstance(text, str), f"{column} is {text!r}, not JSON text")
    try:
        value = json.loads(str(text))
    except (ValueError, RecursionError) as error:
        raise DeclarationError(f"{column} {str(text)[:60]!r} is not JSON: {error}") from error
    require(isinstance(value, dict), f"{column} is {str(text)[:60]!r}, not a JSON object")
    return value  # type: ignore[no-any-return]


def tolerant_text(data: bytes) -> str:
    """sqlite3's text factory that never raises: one row of bad UTF-8 must not make the table unreadable."""
    return data.decode("utf-8", errors="replace")
