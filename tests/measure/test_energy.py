"""Energy of a call, on counters that are told what to show."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from kernelyard.measure import energy, nvidia
from kernelyard.measure.clocks import Stopwatch
from kernelyard.measure.state import Unknown
from kernelyard.registry.spec import DeviceIdentity

CPU = DeviceIdentity("cpu", "cpu", "x", "Linux", "cpu-x")
GPU = DeviceIdentity("cuda", "GPU", "sm_90", "1", "cuda-00112233445566778899aabbccddeeff")


class Machine:
    """A device on which a call takes `call_s` and `call_j`, and whose counter moves every `tick_s`."""

    def __init__(self, call_s: float, call_j: float, tick_s: float) -> None:
        self.call_s, self.call_j, self.tick_s = call_s, call_j, tick_s
        self.calls = 0
        self.looks = 0

    def work(self, calls: int) -> None:
        self.calls += calls

    def now(self) -> float:
        self.looks += 1
        return self.calls * self.call_s + self.looks * 1e-6

    def joules(self) -> float:
        ticks = int(self.calls * self.call_s / self.tick_s)
        return ticks * self.tick_s / self.call_s * self.call_j

    def watch(self) -> Stopwatch:
        return Stopwatch("fake", lambda calls: calls * self.call_s * 1e6, work=self.work)


@pytest.mark.parametrize("call_s", [3e-6, 4e-4, 0.02])
@pytest.mark.parametrize("tick_s", [0.001, 0.02, 0.1])
def test_joules_of_a_call_are_right_however_coarse_the_counter(call_s: float, tick_s: float) -> None:
    machine = Machine(call_s, 7e-3, tick_s)
    found = energy.joules_per_call(machine.watch(), 1, machine.joules, machine.now)
    assert found == pytest.approx(7e-3, rel=0.06)
    assert machine.calls * call_s >= energy.STRETCH_S


def test_a_counter_that_stands_still_is_said() -> None:
    machine = Machine(1e-3, 1.0, tick_s=1e9)
    with pytest.raises(Unknown, match="stood still"):
        energy.joules_per_call(machine.watch(), 1, machine.joules, machine.now)


def powercap(root: Path, *packages: tuple[int, int]) -> Path:
    """A tree as Linux shows it: packages with (energy_uj, range), a zone inside the first, and the platform's own."""
    for index, (joules, whole) in enumerate(packages):
        _zone(root / f"intel-rapl:{index}", f"package-{index}", joules, whole)
    _zone(root / "intel-rapl:0:0", "core", 5, 10)
    _zone(root / "intel-rapl:9", "psys", 10**9, 10**10)
    return root


def _zone(zone: Path, name: str, joules: int, whole: int) -> None:
    zone.mkdir(parents=True, exist_ok=True)
    for file, content in (("name", name), ("energy_uj", joules), ("max_energy_range_uj", whole)):
        (zone / file).write_text(f"{content}\n")


def test_packages_are_summed_and_a_counter_that_starts_again_goes_on(tmp_path: Path) -> None:
    read, source = energy.rapl(powercap(tmp_path, (9_000_000, 10_000_000), (1_000_000, 10_000_000)))
    assert (read(), source) == (10.0, "RAPL, 2 packages")
    powercap(tmp_path, (500_000, 10_000_000), (1_500_000, 10_000_000))
    assert read() == pytest.approx(12.0)


def test_a_cpu_without_counters_says_so(tmp_path: Path) -> None:
    with pytest.raises(Unknown, match="lists no package"):
        energy.rapl(tmp_path)


def test_counters_that_may_not_be_read_say_so(tmp_path: Path) -> None:
    root = powercap(tmp_path, (1, 10))
    (root / "intel-rapl:0" / "energy_uj").unlink()
    (root / "intel-rapl:0" / "energy_uj").mkdir()  # what can't be read even by root, who may read any file
    with pytest.raises(Unknown, match=r"energy_uj can't be read"):
        energy.rapl(root)


def test_where_energy_is_not_told_the_reason_stands_in_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(energy, "POWERCAP", tmp_path)
    found = energy.measure_energy({"a": Machine(1e-3, 1.0, 0.1).watch()}, {"a": 1}, CPU)
    assert found.joules == {} and "this CPU does not tell its energy" in found.absent


def test_every_candidate_gets_its_joules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(energy, "joules_per_call", lambda watch, calls, read: read() / calls)
    monkeypatch.setattr(energy, "meter", lambda device: (lambda: 8.0, "fake"))
    watch = Machine(1e-3, 1.0, 0.1).watch()
    assert energy.measure_energy({"a": watch, "b": watch}, {"a": 2, "b": 4}, CPU) == energy.Energy({"a": 4.0, "b": 2.0}, "fake")


def fake_nvml(millijoules: Callable[[], int]) -> Any:
    class NVMLError(Exception):
        pass

    nvml: Any = ModuleType("pynvml")
    nvml.NVMLError = NVMLError
    nvml.nvmlInit = lambda: None
    nvml.nvmlDeviceGetHandleByUUID = lambda uuid: uuid
    nvml.nvmlDeviceGetTotalEnergyConsumption = lambda handle: millijoules()
    return nvml


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], None]:
    """Puts a fake NVML in the place of the package."""

    def install(nvml: Any) -> None:
        monkeypatch.setitem(__import__("sys").modules, "pynvml", nvml)
        monkeypatch.setattr(nvidia, "installed", lambda package: True)
        nvidia._handle.cache_clear()

    return install


def test_a_gpus_counter_is_read_in_joules(installed: Callable[[Any], None]) -> None:
    installed(fake_nvml(lambda: 12_500))
    read, source = energy.meter(GPU)
    assert read() == 12.5 and "whole GPU" in source


def test_a_gpu_without_a_counter_says_so(installed: Callable[[Any], None], monkeypatch: pytest.MonkeyPatch) -> None:
    def unsupported() -> int:
        raise nvml.NVMLError("Not Supported")

    nvml = fake_nvml(unsupported)
    installed(nvml)
    with pytest.raises(Unknown, match="Not Supported"):
        energy.meter(GPU)
    monkeypatch.setattr(nvidia, "installed", lambda package: False)
    with pytest.raises(Unknown, match="nvidia-ml-py is not installed"):
        energy.meter(GPU)
