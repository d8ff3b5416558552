"""Proofs of determinism come back as they were kept; what can't be read is none, and never a crash."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from kernelyard.registry.spec import Determinism, Proof
from kernelyard.store import proofs

PROOF = Proof("rmsnorm", "cpp.onepass", "cpu/x", "c1", "s1", {"torch": "2.13.0"}, "correctness", "m1", 300, Determinism.BITWISE)
KEY = (PROOF.op, PROOF.kernel, PROOF.device_key)


def test_a_proof_comes_back_and_a_later_one_takes_its_place(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    proofs.save(PROOF, path)
    assert proofs.find(*KEY, path) == PROOF
    later = replace(PROOF, source_hash="s2", determinism=Determinism.RUN_TO_RUN)
    proofs.save(later, path)
    assert proofs.find(*KEY, path) == later
    assert proofs.find("rmsnorm", "cpp.onepass", "cpu/another", path) is None


def test_where_there_is_no_store_there_is_no_proof_and_nothing_is_made(tmp_path: Path) -> None:
    assert proofs.find(*KEY, tmp_path / "a.db") is None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("column", "value"), [("versions", "{"), ("versions", "[1]"), ("determinism", "perhaps"), ("cases", 0), ("cases", "many")]
)
def test_a_damaged_row_is_no_proof_and_is_told_once(tmp_path: Path, capsys, column: str, value: object) -> None:
    path = tmp_path / "a.db"
    proofs.save(PROOF, path)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(f"update proofs set {column} = ?", (value,))
    assert proofs.find(*KEY, path) is None and proofs.find(*KEY, path) is None
    assert capsys.readouterr().err.count("the proof of cpp.onepass (rmsnorm)") == 1


def test_a_file_that_is_no_database_is_no_proof(tmp_path: Path, capsys) -> None:
    path = tmp_path / "a.db"
    path.write_bytes(b"not a database at all" * 100)
    assert proofs.find(*KEY, path) is None
    assert "no kernel counts as shown deterministic" in capsys.readouterr().err


def test_a_store_of_a_version_without_proofs_has_none(tmp_path: Path, capsys) -> None:
    path = tmp_path / "a.db"
    sqlite3.connect(path).execute("create table choices (id int)").connection.close()
    assert proofs.find(*KEY, path) is None and capsys.readouterr().err == ""
