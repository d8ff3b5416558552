"""A GPU's state by an NVML that is told what to answer, and what states say together."""

from __future__ import annotations

import os
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from kernelyard.contracts.vector_add import VECTOR_ADD
from kernelyard.measure import conditions, nvidia
from kernelyard.measure.protocol import Candidate, measure
from kernelyard.measure.state import DeviceState, Seen
from kernelyard.registry.backend import Executable
from kernelyard.registry.op import Point
from kernelyard.registry.spec import DeviceIdentity

GPU = DeviceIdentity("cuda", "GPU", "sm_90", "1", "cuda-00112233445566778899aabbccddeeff")


class FakeNvml(ModuleType):
    """One GPU; what is not set here it does not know, as an old driver."""

    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0

    class NVMLError(Exception):
        pass

    def __init__(self) -> None:
        super().__init__("pynvml")
        self.started = 0
        self.handles: list[str] = []
        self.clocks = {self.NVML_CLOCK_SM: 1980, self.NVML_CLOCK_MEM: 3201}
        self.reasons = 0
        self.processes: list[Any] = []
        self.utilization: list[Any] = []

    def nvmlInit(self) -> None:
        self.started += 1

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        self.handles.append(uuid)
        return uuid

    def nvmlDeviceGetClockInfo(self, handle: str, which: int) -> int:
        return self.clocks[which]

    def nvmlDeviceGetTemperature(self, handle: str, which: int) -> int:
        return 41

    def nvmlDeviceGetPowerUsage(self, handle: str) -> int:
        raise self.NVMLError("Not Supported")

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: str) -> int:
        return 5_000

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: str) -> int:
        return self.reasons

    def nvmlDeviceGetComputeRunningProcesses(self, handle: str) -> list[Any]:
        return self.processes

    def nvmlDeviceGetProcessUtilization(self, handle: str, since_us: int) -> list[Any]:
        assert since_us > 10**15, "microseconds since the epoch"
        return self.utilization


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    fake = FakeNvml()
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    monkeypatch.setattr(nvidia, "installed", lambda package: True)
    nvidia._handle.cache_clear()
    return fake


def batch() -> Seen:
    return nvidia.guard(GPU)()()


def test_a_batch_has_the_state_at_its_start_and_its_end_and_nvml_is_opened_once(nvml: FakeNvml) -> None:
    seen = [batch() for _ in range(5)]
    assert all(len(one.states) == 2 and one.disturbance == "" for one in seen)
    first = seen[0].states[0]
    assert (first.mhz, first.memory_mhz, first.temperature_c, first.power_w, first.energy_j) == (1980, 3201, 41, None, 5.0)
    assert nvml.started == 1 and nvml.handles == ["GPU-00112233-4455-6677-8899-aabbccddeeff"]


def test_a_forked_process_opens_nvml_anew(nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    batch()
    monkeypatch.setattr("kernelyard.measure.nvidia.os.getpid", lambda: 1)
    batch()
    assert nvml.started == 2


def test_clocks_held_down_and_a_working_neighbour_disturb_a_batch(nvml: FakeNvml) -> None:
    nvml.reasons = 0x20
    assert batch().disturbance == "clocks held down by heat"
    nvml.reasons, nvml.utilization = 0, [SimpleNamespace(pid=os.getppid(), smUtil=60), SimpleNamespace(pid=os.getpid(), smUtil=90)]
    assert batch().disturbance == f"process {os.getppid()} used 60% of the GPU"


def test_an_idle_neighbour_is_told_and_disturbs_nobody(nvml: FakeNvml) -> None:
    nvml.processes = [SimpleNamespace(pid=os.getpid(), usedGpuMemory=1 << 30), SimpleNamespace(pid=os.getppid(), usedGpuMemory=1 << 30)]
    seen = batch()
    assert seen.disturbance == ""
    assert conditions.summary(seen.states).endswith(f"process {os.getppid()} (1024 MB) also has memory on it")


def test_in_a_container_the_only_process_is_our_own_under_another_number(nvml: FakeNvml) -> None:
    nvml.processes = [SimpleNamespace(pid=1 << 30, usedGpuMemory=1)]
    assert batch().states[0].others == ()


def test_an_nvml_that_fails_is_said(nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    def lost() -> None:
        raise nvml.NVMLError("Driver Not Loaded")

    monkeypatch.setattr(nvml, "nvmlInit", lost)
    assert "unknown: Driver Not Loaded" in nvidia.state(GPU).noisy and "Driver Not Loaded" in batch().disturbance


def test_without_nvml_batches_are_not_held_up_by_nvidia_smi(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvidia, "installed", lambda package: False)
    monkeypatch.setattr("kernelyard.measure.nvidia.subprocess", None)
    assert batch() == Seen()


def test_states_are_told_as_ranges() -> None:
    states = [DeviceState("cuda", 0.0, mhz=mhz, memory_mhz=3201, power_w=watts) for mhz, watts in ((1980, 310.2), (1965, 640.0))]
    assert conditions.summary(states) == "SM clock 1965-1980 MHz, memory 3201 MHz, 310-640 W"
    cpu = [DeviceState("cpu", 0.0, cores=2, load=load, governor="performance") for load in (0.4, 1.25)]
    assert conditions.summary(cpu) == "load 0.4-1.2 on 2 cores, governor performance"
    assert conditions.summary([]) == conditions.summary([DeviceState("cuda", 0.0)]) == ""


@pytest.mark.parametrize(("clocks", "moved"), [((1980, 1965, 1980), False), ((1980, 1800), True), ((None, 1980), False)])
def test_a_gpu_clock_that_moves_by_more_than_a_few_per_cent_is_named(clocks: tuple[int | None, ...], moved: bool) -> None:
    assert bool(conditions.clock_change([DeviceState("cuda", 0.0, mhz=mhz) for mhz in clocks])) == moved
    assert conditions.clock_change([DeviceState("cpu", 0.0, mhz=mhz) for mhz in clocks]) == ""


def test_what_a_device_does_not_tell_does_not_move() -> None:
    assert conditions.moving([DeviceState("cuda", 0.0), DeviceState("cuda", 1.0, mhz=1980)]) == ""
    assert conditions.moving([DeviceState("cpu", 0.0, mhz=800), DeviceState("cpu", 1.0, mhz=3000)]) == ""
    assert "345 to 1980" in conditions.moving([DeviceState("cuda", 0.0, mhz=345), DeviceState("cuda", 1.0, mhz=1980)])


def test_a_busy_device_is_told_before_the_timing(home: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernelyard.measure.device.state", lambda device: DeviceState("cpu", 0.0, noisy="load average 9.0 on 2 cores"))
    messages: list[str] = []
    candidate = Candidate("a", VECTOR_ADD, VECTOR_ADD.workload(Point((64,), "float32")), Executable(torch.add))
    measured = measure([candidate], device_type="cpu", most_batches=3, budget_s=0.02, waiting=messages.append)
    assert "is not quiet: load average 9.0" in messages[0] and measured.states[0].noisy
