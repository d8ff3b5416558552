"""Taking away what nobody needs any more. What is stale the caller judges; here is told what hangs on what.

Times stay with what they led to: those of a run that a remaining choice or rule names are never taken.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from kernelyard.store import choices
from kernelyard.store.database import open_store
from kernelyard.store.files import database_path, failures
from kernelyard.store.records import Entry, stamp
from kernelyard.store.rules import RuleEntry

NEEDED = " union ".join(
    f"select run_id from {table} where run_id is not null and id not in (select value from json_each(:{table}))"
    for table in ("choices", "rules")
)
NEEDED += " union select id from runs where started_at >= :running"
RUNNING_DAYS = 1.0
"""A run begun since may be measuring still, and what it finds must have a run to name: without it `tune` ends in an error."""
OLD = f"created_at < :before and (:op is null or op = :op) and run_id not in ({NEEDED})"
EMPTY = f":op is null and started_at < :before and id not in ({NEEDED}) and id not in (select run_id from measurements where not ({OLD}))"
CONDITIONS = {
    **{table: f"id in (select value from json_each(:{table}))" for table in ("choices", "rules")}, "measurements": OLD, "runs": EMPTY,
}  # fmt: skip
"""By table, in the order that foreign keys ask for."""


@dataclass(frozen=True)
class Asked:
    """Which choices and rules go, and how old a time or a run must be that none that remains needs; of one op, or of all."""

    gone: Sequence[Entry]
    rules: Sequence[RuleEntry]
    days: float
    op: str | None = None

    @property
    def before(self) -> str:
        """The moment, as the store writes it. Text compares as time does; what a clock ahead has dated later stays."""
        return _ago(self.days)


def _ago(days: float) -> str:
    return stamp(datetime.now(UTC) - timedelta(days=days))


def counts(asked: Asked, path: Path | None = None) -> dict[str, int]:
    """How many rows of each table `remove` would take; changes nothing."""
    path = path or database_path()
    if not path.is_file():
        return dict.fromkeys(CONDITIONS, 0)
    with failures(path), closing(choices.connect_read_only(path)) as connection:
        there = choices.tables(connection)
        if "choices" not in there:
            return dict.fromkeys(CONDITIONS, 0)  # empty, or another process is just creating it
        # A store of before rules is looked at as it is. In memory beside the file: it may be read-only.
        if "rules" not in there:
            connection.execute("create temp table rules (id, run_id, op, device_key, mode, created_at)")
        values = _values(connection, asked)
        selects = {name: f"select count(*) from {name} where {rule}" for name, rule in CONDITIONS.items()}
        return {name: connection.execute(select, values).fetchone()[0] for name, select in selects.items()}


def remove(asked: Asked, path: Path | None = None) -> dict[str, int]:
    """Take the rows away in one transaction; how many of each table. What was tuned again since it was judged stays."""
    with open_store(path) as store, failures(store.path), store.db.atomic():
        values = _values(store.db.conn, asked)
        return {name: store.db.execute(f"delete from {name} where {rule}", values).rowcount for name, rule in CONDITIONS.items()}


def _values(connection: Any, asked: Asked) -> dict[str, Any]:
    select = "select id from choices where op = ? and workload_key = ? and device_key = ? and mode = ? and created_at is ?"
    keys = [(one.op, one.workload_key, one.device_key, one.mode, one.created_at or None) for one in asked.gone]
    ids = [id for key in keys for (id,) in connection.execute(select, key)]
    select = "select id from rules where op = ? and device_key = ? and mode = ? and created_at is ?"
    ruled = [(one.op, one.device_key, one.mode, one.created_at or None) for one in asked.rules]
    rule_ids = [id for key in ruled for (id,) in connection.execute(select, key)]
    return {
        "choices": json.dumps(ids),
        "rules": json.dumps(rule_ids),
        "before": asked.before,
        "running": _ago(RUNNING_DAYS),
        "op": asked.op,
    }
