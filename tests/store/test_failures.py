"""Failures under short ids: the same failure has the same id, and what was kept comes back whole."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from kernelyard.errors import StoreFailed, UnknownName
from kernelyard.store.database import open_store
from kernelyard.store.failures import Failure, find, save

FAILURE = Failure(
    "rmsnorm", "cpp.mine", "mine", {"block": 8, "fast": True}, [[7, 129], "float32", "offset", [["casting", "llama"]]], "nan", 0, "cpu",
    "wrong", "3 of 9 elements differ", "0123", "cpu/A CPU/x86_64/Linux",
)  # fmt: skip


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "kernelyard.db"


def test_a_failure_comes_back_whole_by_its_id_and_by_the_beginning_of_it(path: Path) -> None:
    save([FAILURE, replace(FAILURE, edge="zeros")], path)
    for id in (FAILURE.id, FAILURE.id[:6]):
        found = find(id, path)
        assert found == FAILURE and (found.source_hash, found.device_key) == (FAILURE.source_hash, FAILURE.device_key)


def test_the_id_is_8_hex_digits_of_all_but_the_words_and_what_the_machine_was() -> None:
    assert len(FAILURE.id) == 8 and int(FAILURE.id, 16) >= 0
    for same in ({"reason": "4 of 9"}, {"source_hash": "9"}, {"device_key": "cpu/other"}, {"config": {"fast": True, "block": 8}}):
        assert replace(FAILURE, **same).id == FAILURE.id, same
    point = [[7, 1], "float32", "offset", []]
    for other in ({"config": {}}, {"edge": "inf"}, {"seed": 1}, {"device": "cuda"}, {"status": "crashed"}, {"point": point}):
        assert replace(FAILURE, **other).id != FAILURE.id, other


def test_a_failure_met_again_has_its_newest_words(path: Path) -> None:
    save([FAILURE], path)
    save([replace(FAILURE, reason="4 of 9 elements differ")], path)
    assert find(FAILURE.id, path).reason == "4 of 9 elements differ"


def test_an_unknown_id_names_those_that_exist(path: Path) -> None:
    with pytest.raises(UnknownName, match="There are: none"):
        find("00000000", path)
    save([FAILURE], path)
    with pytest.raises(UnknownName, match=f"no failure named 'zz'. There are: {FAILURE.id}"):
        find("zz", path)


def test_a_row_that_can_not_be_read_says_so(path: Path) -> None:
    save([FAILURE], path)
    with open_store(path) as store:
        store.db.execute("update failures set point = 'nonsense'")
        store.db.conn.commit()
    with pytest.raises(StoreFailed, match="can't be read"):
        find(FAILURE.id, path)
