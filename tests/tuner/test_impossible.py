"""A kernel that is right while it is checked and idle while it is timed: its time is below what the device can do."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from kernelyard.cli import run as command
from kernelyard.measure import ceiling_file
from kernelyard.registry import registry
from kernelyard.registry.machine import identity
from kernelyard.tuner.tune import tune
from tests.tuner.test_tune import quick, workload

RATES = {"measured_at": "", "copy_gbps": 10.0, "read_gbps": 10.0, "peak_gbps": 10.0}
"""A slow device: 160 kB take it 16 us. The kernels that do their work take hundreds of microseconds, the idle one well below one."""


@pytest.fixture
def slow_device(toy: Path) -> Iterator[None]:
    key = identity("cpu").key()
    ceiling_file.update(key, {"rates": {"device_key": key, **RATES}})
    yield


def test_it_is_wrong_with_the_figures_and_is_not_chosen(slow_device: None) -> None:
    op = registry.current().op("idle")
    (report,) = tune(op, [workload(op)], "cpu", matrix=op.matrix("performance", "cpu"), limits=quick()).workloads
    assert report.choice.kernel == "toy.eager" and "impossible" in report.choice.reason
    assert report.evidence["trials"]["wrong"] == 1 and report.evidence["trials"]["ok"] == 0


def test_bench_shows_no_time_of_it_and_exits_1(slow_device: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(["bench", "idle", "--kernel", "toy.tuned", "--seconds", "0.1", "--json"]) == 1
    rows = {row["kernel"]: row for row in json.loads(capsys.readouterr().out)["rows"]}
    assert rows["toy.tuned"]["device_time_us"] is None and "impossible" in rows["toy.tuned"]["reason"]
    assert rows["toy.eager"]["device_time_us"] > 0 and rows["toy.eager"]["reason"] == ""


def test_against_itself_a_right_kernel_shows_no_difference(toy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command(["bench", "many", "--kernel", "toy.tuned", "--against-itself", "--repeat", "3", "--seconds", "0.1", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert found["runs"] == len(found["ratios"]) == 3 and found["kernel"] == "toy.tuned"
    assert found["holding"] == sum(one["low"] <= 1.0 <= one["high"] for one in found["ratios"])


def test_against_itself_wants_one_kernel(toy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(["bench", "many", "--against-itself"]) == 2
    assert "--kernel NAME" in capsys.readouterr().err
