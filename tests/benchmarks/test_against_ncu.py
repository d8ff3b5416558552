"""benchmarks/against_ncu.py without a GPU: what it refuses, and that one pair's failure costs that pair only."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from benchmarks import against_ncu
from kernelyard.registry import registry
from kernelyard.registry.matrix import Point


def test_without_a_gpu_it_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr(sys, "argv", ["against_ncu.py"])
    monkeypatch.setattr("kernelyard.registry.machine.cuda_ready", lambda: registry.Answer(False, "no NVIDIA GPU"))
    assert against_ncu.main() == 2 and "no NVIDIA GPU" in capsys.readouterr().err


def test_ten_pairs_of_kernels_that_exist() -> None:
    everything = registry.current()
    assert len(against_ncu.PAIRS) == 10
    for op, kernel, point in against_ncu.PAIRS:
        assert everything.kernel(op, kernel).support.fits(everything.op(op).workload(point, "cuda"))


def test_a_pair_that_fails_has_its_reason_and_the_table_has_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    def times(pair: Any) -> dict[str, Any]:
        graph, events = {"graph_us": 4.1, "graph_over_ncu": 1.025}, {"events_us": 4.4, "events_over_ncu": 1.1}
        return {"ncu_us": 4.0, **graph, **events, "activity_us": 3.9, "activity_over_ncu": 0.975}

    def full(*pair: Any) -> Any:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(against_ncu, "_times", times)
    monkeypatch.setattr(against_ncu, "_pair", lambda *pair: pair)
    good = against_ncu.row("rmsnorm", "triton.row", Point((16, 4096), "bfloat16"))
    monkeypatch.setattr(against_ncu, "_pair", full)
    bad = against_ncu.row("softmax", "triton.row", Point((16, 4096), "bfloat16"))
    text = against_ncu.table([good, bad])
    assert "| 4 | 4.4 | 1.1 | 3.9 | 0.975 | 4.1 | 1.025 |" in text and "n/a" in text
    assert bad["reason"] == "RuntimeError: out of memory" and bad["reason"] in text
