"""benchmarks/host_time.py: what it compares, and its table."""

from __future__ import annotations

import sys

import pytest

from benchmarks import host_time
from kernelyard.measure.interleave import Plan


def test_every_candidate_is_timed_in_one_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_time, "PLAN", Plan(batches=3, most_batches=3, budget_s=0.01, warm_up_s=0.0))
    rows = host_time.measured("cpu", "torch.eager")
    names = {row["candidate"] for row in rows}
    assert {"bound", "dispatch", "dispatch, out=", "torch.add", "empty function"} <= names
    assert all(row["call_us"] >= 0 and row["kernel"] == "torch.eager" for row in rows)
    assert len(host_time.table(rows).splitlines()) == len(rows) + 4


def test_a_kernel_that_does_not_exist_is_refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["host_time.py", "--device", "cpu", "--kernel", "no.such"])
    assert host_time.main() == 2
    assert "no.such" in capsys.readouterr().err
