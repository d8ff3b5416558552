"""The state of a device around a measurement: clocks, temperature, power, throttling, load, neighbours; and whether that is noise."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from kernelyard.registry.spec import DeviceIdentity

POWER_CAP = "power cap"
"""Among a state's throttle reasons."""

LEAST_NOISE_CORES = 0.25
NOISE_SHARE = 0.10


@dataclass(frozen=True)
class DeviceState:
    """What the device tells; None or empty is what it doesn't. `noisy` is empty or a sentence on what will disturb a timing.

    Of a CPU: cores, load (1 minute), governor, mhz. Of a GPU: the clocks in MHz, temperature, power, throttle reasons,
    energy so far. `others` are other processes on a GPU.
    """

    device_type: str
    at: float
    cores: int | None = None
    load: float | None = None
    governor: str = ""
    mhz: int | None = None
    memory_mhz: int | None = None
    temperature_c: int | None = None
    power_w: float | None = None
    energy_j: float | None = None
    throttle: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    noisy: str = ""


class Unknown(Exception):
    """The device does not tell; the message has the reason."""


@dataclass(frozen=True)
class Seen:
    """One batch, seen from outside: the device's state at its start and its end, and what disturbed it, or ''."""

    states: tuple[DeviceState, ...] = ()
    disturbance: str = ""


Guard = Callable[[], Callable[[], Seen]]
"""Called when a batch starts; what it returns is called when the batch ends."""


def state(device: DeviceIdentity) -> DeviceState:
    """The device now."""
    if device.type == "cuda":
        from kernelyard.measure import nvidia

        return nvidia.state(device)
    return _cpu_state()


def guard(device: DeviceIdentity) -> Guard:
    """A guard for one device, cheap enough for every batch."""
    if device.type == "cuda":
        from kernelyard.measure import nvidia

        return nvidia.guard(device)
    return _cpu_guard


def _cpu_state() -> DeviceState:
    cores = usable_cores()
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    noisy = f"load average {load:.1f} on {cores} cores" if load is not None and load > cores + 0.5 else ""
    return DeviceState("cpu", time.time(), cores, load, _read("cpufreq/scaling_governor"), _mhz(), noisy=noisy)


def usable_cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _mhz() -> int | None:
    khz = _read("cpufreq/scaling_cur_freq")
    return int(khz) // 1000 if khz.isdigit() else None


def _read(name: str) -> str:
    try:
        return Path("/sys/devices/system/cpu/cpu0", name).read_text().strip()
    except OSError:
        return ""


@dataclass(frozen=True, slots=True)
class _Usage:
    """Processor seconds since boot: of all processes, stolen by the hypervisor, and our own."""

    at: float
    busy_s: float
    stolen_s: float
    own_s: float


def _cpu_guard() -> Callable[[], Seen]:
    start, before = _cpu_state(), _usage()

    def end() -> Seen:
        after = _usage()
        return Seen((start, _cpu_state()), _disturbance(before, after, os.cpu_count() or 1))

    return end


def _usage() -> _Usage | None:
    """None where /proc/stat does not exist (macOS): neighbours are then seen only in the load average."""
    try:
        fields = [int(text) for text in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    except (OSError, ValueError):
        return None
    user, nice, system, _idle, _iowait, irq, softirq, steal = fields
    tick = os.sysconf("SC_CLK_TCK")
    return _Usage(time.monotonic(), (user + nice + system + irq + softirq) / tick, steal / tick, time.process_time())


def _disturbance(before: _Usage | None, after: _Usage | None, cores: int) -> str:
    """In words, if others used more than a tenth of the cores; a reading steps by 10 ms, so very short batches tell nothing."""
    if before is None or after is None or after.at - before.at < 0.05:
        return ""
    wall = after.at - before.at
    others = (after.busy_s - before.busy_s - (after.own_s - before.own_s)) / wall
    stolen = (after.stolen_s - before.stolen_s) / wall
    limit = max(LEAST_NOISE_CORES, NOISE_SHARE * cores)
    if others > limit:
        return f"other processes used {others:.1f} of {cores} cores"
    return f"the hypervisor took {stolen:.1f} of {cores} cores" if stolen > limit else ""
