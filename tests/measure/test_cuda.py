"""CUDA clocks. The marked tests need a GPU; none asserts how fast anything is, only that clocks agree and say what they did."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from kernelyard.contracts.vector_add import VECTOR_ADD
from kernelyard.errors import MeasurementFailed
from kernelyard.measure import clocks, device, roofline
from kernelyard.measure.arguments import Rotation
from kernelyard.measure.clocks import Stopwatch
from kernelyard.measure.protocol import Candidate, Measured, measure
from kernelyard.registry.backend import Executable
from kernelyard.registry.machine import identity
from kernelyard.registry.op import Point


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNELYARD_HOME", str(tmp_path / "home"))


def add_into(outputs: Any, a: Any, b: Any) -> None:
    torch.add(a, b, out=outputs[0])


def peeking(outputs: Any, a: Any, b: Any) -> None:
    """Waits for the device, which no graph can record."""
    torch.add(a, b, out=outputs[0])
    outputs[0][0].item()


def run(n: int, mode: Any = "device", **executables: Executable) -> Measured:
    workload = VECTOR_ADD.workload(Point((n,), "bfloat16"), "cuda")
    candidates = [Candidate(name, VECTOR_ADD, workload, executable) for name, executable in executables.items()]
    return measure(candidates, device_type="cuda", mode=mode, budget_s=0.5)


ADD = Executable(torch.add, add_into)


@pytest.mark.gpu
@pytest.mark.parametrize("n", [4096, 1 << 24])
def test_a_kernel_against_itself_by_graph_replay_shows_no_difference(n: int) -> None:
    measured = run(n, a=ADD, b=ADD)
    ratio = measured.ratio("a", "b")
    assert measured["a"].clock == "graph" and ratio is not None
    assert ratio.contains(1.0) or abs(ratio.median - 1) < 0.01
    assert ("flushed" in measured.notes("a")) == (n == 4096)


@pytest.mark.gpu
def test_a_kernel_that_allocates_is_captured_like_one_that_does_not() -> None:
    measured = run(1 << 24, allocates=Executable(torch.add), writes=ADD)
    assert measured["allocates"].clock == measured["writes"].clock == "graph"


@pytest.mark.gpu
def test_one_candidate_that_can_not_be_captured_puts_all_on_events_with_the_reason() -> None:
    measured = run(1 << 20, good=ADD, bad=Executable(torch.add, peeking))
    assert {measured[name].clock for name in ("good", "bad")} == {"events"}
    assert "bad can't be captured" in measured.notes("good") and measured.ratio("good", "bad") is not None
    assert run(1 << 20, good=ADD)["good"].clock == "graph"


@pytest.mark.gpu
def test_a_replay_that_writes_nothing_is_not_believed() -> None:
    measured = run(1 << 20, nothing=Executable(torch.add, lambda outputs, a, b: None))
    assert measured["nothing"].clock == "events" and "unwritten" in measured.notes("nothing")


@pytest.mark.gpu
def test_a_call_from_python_is_timed_on_the_host() -> None:
    measured = run(4096, mode="call", a=ADD)
    assert measured["a"].clock == "monotonic" and measured["a"].mode == "call" and measured["a"].median_us > 0


@pytest.mark.gpu
def test_a_large_copy_is_possible_and_near_its_ceiling() -> None:
    workload = VECTOR_ADD.workload(Point((1 << 26,), "bfloat16"), "cuda")
    cost, found = VECTOR_ADD.cost(workload), roofline.ceilings("cuda")
    measured = measure([roofline.copy_candidate(VECTOR_ADD, workload)], device_type="cuda", budget_s=0.5)
    assert roofline.impossible(cost, measured["copy"], found) == ""
    assert set(found.matrix_tflops) == {"float32", "bfloat16", "float16"}


@pytest.mark.gpu
def test_the_gpu_tells_its_state() -> None:
    seen = device.state(identity("cuda"))
    assert seen.mhz is not None and seen.temperature_c is not None and "unknown" not in seen.noisy


def test_falling_back_to_events_takes_every_candidate_along(monkeypatch: pytest.MonkeyPatch) -> None:
    from kernelyard.measure import cuda

    def graph(executable: Executable, rotation: Rotation) -> Stopwatch:
        if executable is bad:
            raise cuda.NotCapturable("it synchronises")
        return Stopwatch("graph", float)

    def events(executable: Executable, rotation: Rotation, reason: str = "") -> Stopwatch:
        return Stopwatch("events", float, note=reason)

    monkeypatch.setattr(cuda, "graph_time", graph)
    monkeypatch.setattr(cuda, "event_time", events)
    good, bad, none = Executable(float), Executable(int), Rotation([], 0, "")
    watches = clocks.stopwatches({"good": (good, none), "bad": (bad, none)}, "cuda", "device")
    assert [watch.clock for watch in watches.values()] == ["events", "events"]
    assert "bad can't be captured in a CUDA graph (it synchronises)" in watches["good"].note
    assert clocks.stopwatches({"good": (good, none)}, "cuda", "device")["good"].clock == "graph"


def test_a_candidate_that_fails_before_it_is_captured_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from kernelyard.measure import cuda

    def broken(executable: Executable, rotation: Rotation) -> Stopwatch:
        raise RuntimeError("an illegal memory access was encountered")

    monkeypatch.setattr(cuda, "graph_time", broken)
    with pytest.raises(MeasurementFailed, match=r"triton\.bad raised RuntimeError .*illegal memory access"):
        clocks.stopwatches({"triton.bad": (Executable(float), Rotation([], 0, ""))}, "cuda", "device")


def test_a_flush_buffer_that_does_not_fit_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    from kernelyard.measure import cuda

    def full(*args: Any, **options: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(cuda, "_l2_bytes", lambda: 60 << 20)
    monkeypatch.setattr(torch, "zeros", full)
    with pytest.raises(MeasurementFailed, match="180 MB that flushes L2 doesn't fit"):
        cuda.flusher()


@pytest.mark.gpu
def test_the_step_of_events_is_measured() -> None:
    from kernelyard.measure import cuda

    assert 0 < cuda.event_step_us() <= cuda.EVENT_STEP_US


@pytest.mark.gpu
def test_a_gpu_tells_the_energy_of_a_call() -> None:
    workload = VECTOR_ADD.workload(Point((1 << 24,), "bfloat16"), "cuda")
    measured = measure([Candidate("a", VECTOR_ADD, workload, ADD)], device_type="cuda", budget_s=0.2, energy=True)
    assert measured.energy is not None and (measured.energy.absent or measured.energy.joules["a"] > 0)
