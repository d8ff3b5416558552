"""The clock of candidates with a `wait`: everything is waited for inside the time, and every candidate is timed alike."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from kernelyard.contracts.vector_add import VECTOR_ADD
from kernelyard.measure import clocks
from kernelyard.measure.arguments import Rotation
from kernelyard.measure.jax_clock import IN_FLIGHT
from kernelyard.measure.protocol import Candidate, first_call_us, measure
from kernelyard.registry.backend import Executable
from kernelyard.registry.op import Point


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNELYARD_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("kernelyard.measure.arguments.CPU_LEAST_BYTES", 4 << 20)


class Later:
    """Work that is only queued by a call: a clock of its own moves by `us` when a result is waited for."""

    def __init__(self, us: float, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ns, self.us, self.queued, self.done = 0, us, 0, 0
        self.most_waiting = 0
        monkeypatch.setattr("kernelyard.measure.jax_clock.time", SimpleNamespace(perf_counter_ns=lambda: self.ns))

    def call(self, *args: Any) -> int:
        self.queued += 1
        self.most_waiting = max(self.most_waiting, self.queued - self.done)
        return self.queued

    def wait(self, result: Any) -> None:
        """Everything up to this result gets done, in order."""
        self.ns += int(max(result - self.done, 0) * self.us * 1000)
        self.done = max(self.done, result)

    def executable(self) -> Executable:
        return Executable(self.call, wait=self.wait)


def sets(count: int) -> Rotation:
    return Rotation([((), (index,)) for index in range(count)], 1, "")


def test_work_that_a_call_only_queued_is_in_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    later = Later(25.0, monkeypatch)
    watch = clocks.stopwatches({"pallas.add": (later.executable(), sets(100))}, "cpu", "device")["pallas.add"]
    assert watch.clock == "block_until_ready"
    assert watch.read(1000) == pytest.approx(25_000.0) and later.done == later.queued == 1000


@pytest.mark.parametrize(("count", "most"), [(2, 2), (500, IN_FLIGHT)])
def test_calls_in_flight_are_bounded(count: int, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    later = Later(1.0, monkeypatch)
    clocks.stopwatches({"a": (later.executable(), sets(count))}, "cpu", "device")["a"].read(1000)
    assert later.most_waiting == most


def test_one_candidate_with_a_wait_takes_all_others_to_its_clock_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    later, into = Later(1.0, monkeypatch), Executable(torch.add, lambda outputs, a, b: None)
    tensors = Rotation([((), (torch.ones(2), torch.ones(2)))], 1, "")
    watches = clocks.stopwatches({"torch.eager": (into, tensors), "pallas.add": (later.executable(), sets(4))}, "cpu", "device")
    assert {watch.clock for watch in watches.values()} == {"block_until_ready"}
    assert "because pallas.add runs outside torch's stream" in watches["torch.eager"].note
    assert clocks.stopwatches({"torch.eager": (into, tensors)}, "cpu", "device")["torch.eager"].clock == "monotonic"


def test_on_a_gpu_the_device_is_waited_for_at_both_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[str] = []
    monkeypatch.setattr("kernelyard.measure.cuda.synchronize", lambda: log.append("device"))
    monkeypatch.setattr("kernelyard.measure.cuda.flusher", lambda: lambda: log.append("flush"))
    jax = Executable(lambda *args: log.append("call"), wait=lambda result: log.append("wait"))
    torch_one = Executable(lambda *args: log.append("call"))
    watches = clocks.stopwatches({"jax": (jax, sets(2)), "torch": (torch_one, sets(2))}, "cuda", "device")
    watches["jax"].read(1)
    assert log == ["flush", "device", "call", "wait", "device"]
    log.clear()
    watches["torch"].read(1)
    assert log == ["flush", "device", "call", "device"]


def test_a_call_from_python_and_the_very_first_call_end_when_the_result_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    later = Later(1.0, monkeypatch)
    clocks.stopwatches({"a": (later.executable(), sets(4))}, "cpu", "call")["a"].read(10)
    assert later.done == later.queued == 10
    first_call_us(later.executable(), ())
    assert later.done == 11


def test_jax_itself_is_timed_beside_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    jax = pytest.importorskip("jax", reason="jax is not installed")
    add = jax.jit(lambda a, b: a + b)

    def call(a: Any, b: Any) -> Any:
        return add(jax.dlpack.from_dlpack(a), jax.dlpack.from_dlpack(b))

    workload = VECTOR_ADD.workload(Point((1 << 16,), "float32"))
    wait: Callable[[Any], None] = jax.block_until_ready
    candidates = [
        Candidate("jax", VECTOR_ADD, workload, Executable(call, wait=wait)),
        Candidate("torch", VECTOR_ADD, workload, Executable(torch.add)),
    ]
    measured = measure(candidates, device_type="cpu", most_batches=3, budget_s=0.1)
    assert measured["jax"].clock == "block_until_ready" and measured["jax"].median_us > 0
    assert measured.ratio("jax", "torch") is not None
