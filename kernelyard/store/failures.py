"""Failures that checks found, under short ids, so that one can be taken up again: `kernelyard repro 3f2a9c1e`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kernelyard.errors import StoreFailed, UnknownName
from kernelyard.registry.spec import Config, config_key, digest
from kernelyard.store.choices import connect_read_only, tables
from kernelyard.store.database import open_store
from kernelyard.store.files import database_path
from kernelyard.store.files import failures as store_failures
from kernelyard.store.records import now

COLUMNS = ("op", "kernel", "plugin", "config", "point", "edge", "seed", "device", "status", "reason", "source_hash", "device_key")


@dataclass(frozen=True)
class Failure:
    """One case that a kernel failed. `point` is JSON: [dims, dtype, layout, statics].

    `source_hash` is that of the kernel's files at that time; `device_key` names the kind of device.
    """

    op: str
    kernel: str
    plugin: str
    config: Config
    point: list[Any]
    edge: str
    seed: int
    device: str
    status: str
    reason: str
    source_hash: str = field(default="", compare=False)
    device_key: str = field(default="", compare=False)

    @property
    def id(self) -> str:
        """8 hex digits. The words of the reason are left out: they tell values and addresses, which may differ each time."""
        parts = (self.op, self.kernel, self.plugin, config_key(self.config), self.point, self.edge, self.seed, self.device, self.status)
        return digest(parts)[:8]


def save(found: Sequence[Failure], path: Path | None = None) -> None:
    """Keeps failures; one that is there already gets its new words. Raises StoreFailed."""
    rows = [_row(failure) for failure in found]
    with open_store(path) as store, store_failures(store.path), store.db.atomic():
        store.db.table("failures").upsert_all(rows, pk="id")


def find(id: str, path: Path | None = None) -> Failure:
    """The failure of this id, or of the only id that begins so; raises UnknownName, StoreFailed."""
    path = path or database_path()
    rows = _rows(path, id)
    if len(rows) != 1:
        recent = [row[0] for row in (rows or _rows(path, ""))]
        raise UnknownName("failure", id, recent[:10])
    return _failure(path, rows[0])


def _rows(path: Path, prefix: str) -> list[tuple[Any, ...]]:
    if not path.is_file():
        return []
    sql = f"select id, {', '.join(COLUMNS)} from failures where substr(id, 1, ?) = ? order by created_at desc limit 11"
    with store_failures(path), closing(connect_read_only(path)) as connection:
        return connection.execute(sql, (len(prefix), prefix)).fetchall() if "failures" in tables(connection) else []


def _row(failure: Failure) -> dict[str, Any]:
    row = {name: getattr(failure, name) for name in COLUMNS}
    return {**row, "id": failure.id, "config": config_key(failure.config), "point": json.dumps(failure.point), "created_at": now()}


def _failure(path: Path, row: tuple[Any, ...]) -> Failure:
    values = dict(zip(COLUMNS, row[1:], strict=True))
    try:
        return Failure(**{**values, "config": json.loads(values["config"]), "point": json.loads(values["point"])})
    except (ValueError, TypeError) as error:
        raise StoreFailed(f"failure {row[0]} in {path} can't be read: {error}.", do="Check the kernel again.") from error
