"""`bench --explain`'s part that needs no device: whose threads count, and what is printed of the counters."""

from __future__ import annotations

from typing import Any

import pytest

from kernelyard.cli import bench_explained
from kernelyard.measure.bound import Cpu, Gpu
from kernelyard.measure.occupancy import Multiprocessor

COUNTERS = {"duration_us": 23.01, "dram_percent": 91.4, "sm_percent": 30.2, "occupancy_percent": 80.0, "l2_hit_percent": None}


def row(**more: Any) -> dict[str, Any]:
    return {"label": "8 bf16", "kernel": "triton.row", "config": {}, "explained": ["One.", "Two.", "Three."], **more}


def printed(capsys: pytest.CaptureFixture[str], one: dict[str, Any]) -> list[str]:
    bench_explained.show([one])
    return [line.strip() for line in capsys.readouterr().out.splitlines() if line]


def test_a_kernels_own_threads_count_before_torchs() -> None:
    facts = {"threads": 8, "cache_bytes": 1 << 20}
    assert bench_explained._facts("cpu", row(), facts) == Cpu(8, 1 << 20)
    assert bench_explained._facts("cpu", row(config={"threads": 2}), facts) == Cpu(2, 1 << 20)


def test_a_gpu_whose_limits_are_not_known_is_said_to_have_none() -> None:
    known = {"count": 132, "registers": 65536, "shared_bytes": 233472, "warps": 64, "blocks": 32}
    assert bench_explained._facts("cuda", row(), {"multiprocessor": known, "empty_us": 1.5}) == Gpu(Multiprocessor(132), 1.5)
    assert bench_explained._facts("cuda", row(), {"multiprocessor": None, "empty_us": 1.5}) == Gpu(None, 1.5)


def test_three_sentences_stand_under_the_kernels_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(capsys, row()) == ["8 bf16: triton.row", "One.", "Two.", "Three."]


def test_counters_that_were_told_follow_and_others_are_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    line = "By ncu: duration 23.01 us, DRAM 91% of its peak, SMs 30% of theirs, achieved occupancy 80%."
    assert printed(capsys, row(counters=COUNTERS, no_counters=""))[-1] == line
    assert printed(capsys, row(counters=dict.fromkeys(COUNTERS), no_counters=""))[-1] == "ncu told none of the counters."


def test_their_absence_has_a_reason(capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(capsys, row(counters=None, no_counters="ncu not found"))[-1] == "No hardware counters: ncu not found"


def test_a_kernel_that_was_not_timed_is_not_explained(capsys: pytest.CaptureFixture[str]) -> None:
    bench_explained.show([{"label": "8 bf16", "kernel": "triton.row", "reason": "wrong"}])
    assert capsys.readouterr().out == ""
