"""The misses that processes leave behind: merged, bounded, and never in the way."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from kernelyard.registry.spec import Miss, Missed
from kernelyard.store import misses
from kernelyard.store.misses import keep, listed

ONE = Miss("rmsnorm", "1x4 fp32", "key 1", "cpu/this", Missed.UNTUNED, "cpp.onepass", "not tuned", "kernelyard tune rmsnorm --shape 1x4")
OTHER = replace(ONE, workload="2x4 fp32", workload_key="key 2")


def test_each_process_that_meets_a_miss_is_counted_and_those_of_most_come_first(home: Path) -> None:
    keep([OTHER])
    keep([OTHER, ONE])
    assert [(one.miss, one.processes) for one in listed()] == [(OTHER, 2), (ONE, 1)]


def test_another_kind_of_device_is_another_miss_and_another_cause_is_the_newer_one(home: Path) -> None:
    keep([ONE])
    keep([replace(ONE, device_key="cuda/that"), replace(ONE, missed=Missed.STALE)])
    found = {(one.miss.device_key, str(one.miss.missed), one.processes) for one in listed()}
    assert found == {("cpu/this", "stale", 2), ("cuda/that", "untuned", 1)}


def test_no_more_than_the_most_are_kept_those_seen_last(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(misses, "MOST", 2)
    for moment, miss in (("2026-01-01", ONE), ("2026-01-02", OTHER), ("2026-01-03", replace(ONE, workload_key="key 3"))):
        monkeypatch.setattr(misses, "now", lambda moment=moment: moment)
        keep([miss])
    assert {one.miss.workload_key for one in listed()} == {"key 2", "key 3"}


@pytest.mark.parametrize("content", ["{", "[]", '{"format": 9, "misses": []}', '{"format": 1, "misses": [{"op": "rmsnorm"}]}', "\\xff"])
def test_a_list_that_cannot_be_read_is_begun_anew(home: Path, content: str) -> None:
    home.mkdir()
    (home / misses.NAME).write_text(content)
    assert listed() == []
    keep([ONE])
    assert [one.miss for one in listed()] == [ONE]


def test_a_home_that_cannot_be_written_is_said_and_raises_nothing(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home.write_text("a file")
    keep([ONE])
    assert "could not be kept" in capsys.readouterr().err


def test_nothing_is_left_beside_the_list(home: Path) -> None:
    keep([ONE])
    assert {path.name for path in home.iterdir()} <= {misses.NAME, f"{misses.NAME}.lock"}
