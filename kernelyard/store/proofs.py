"""Proofs of determinism: written after a check that passed, read to serve calls without ever failing one.

One for each op, kernel and kind of device; a later one takes its place. Whether one still holds the registry judges.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from kernelyard.registry.spec import DeclarationError, Determinism, Proof
from kernelyard.store.choices import connect_read_only, warn_once
from kernelyard.store.database import open_store
from kernelyard.store.files import database_path, failures
from kernelyard.store.records import dump, mapping, now

KEY = ("op", "kernel", "device_key")
COLUMNS = (*KEY, "contract_hash", "source_hash", "versions", "matrix_name", "matrix_hash", "cases", "determinism")


def save(proof: Proof, path: Path | None = None) -> None:
    """Puts a proof in the place of the one its kernel had on that kind of device; raises StoreFailed."""
    row = {name: getattr(proof, name) for name in COLUMNS}
    row |= {"versions": dump(dict(proof.versions)), "determinism": str(proof.determinism), "created_at": now()}
    updates = ", ".join(f"{name} = excluded.{name}" for name in row)
    columns, marks = ", ".join(row), ", ".join("?" for _ in row)
    sql = f"insert into proofs ({columns}) values ({marks}) on conflict ({', '.join(KEY)}) do update set {updates}"
    with open_store(path) as store, failures(store.path), store.db.atomic():
        store.db.execute(sql, list(row.values()))


def find(op: str, kernel: str, device_key: str, path: Path | None = None) -> Proof | None:
    """The proof stored for a kernel on a kind of device; None where there is none, or none that can be read."""
    path = path or database_path()
    if not path.is_file():
        return None
    sql = f"select {', '.join(COLUMNS)} from proofs where {' and '.join(f'{name} = ?' for name in KEY)}"
    try:
        with closing(connect_read_only(path)) as connection:
            row = connection.execute(sql, (op, kernel, device_key)).fetchone()
        return None if row is None else _proof(row)
    except sqlite3.Error as error:
        if "no such table" not in str(error):  # made by a version that stored none
            warn_once(f"the store {path} can't be read ({error}); no kernel counts as shown deterministic")
    except (ValueError, TypeError) as error:
        warn_once(f"the proof of {kernel} ({op}) in {path} can't be read: {error}; check it again")
    return None


def _proof(row: tuple[object, ...]) -> Proof:
    values = dict(zip(COLUMNS, row, strict=True))
    texts = [values[name] for name in COLUMNS if name not in ("versions", "cases")]
    if not all(isinstance(text, str) for text in texts) or not isinstance(values["cases"], int):
        raise DeclarationError("a column is missing or of another type")
    versions = {name: str(version) for name, version in mapping(values["versions"], "versions").items()}
    return Proof(**{**values, "versions": versions, "determinism": Determinism(str(values["determinism"]))})  # type: ignore[arg-type]
