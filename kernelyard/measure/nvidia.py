"""State of an NVIDIA GPU: by NVML (the package nvidia-ml-py) where installed, else by one call of nvidia-smi."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from kernelyard.measure.state import POWER_CAP, DeviceState, Guard, Seen, Unknown
from kernelyard.registry.machine import installed
from kernelyard.registry.spec import DeviceIdentity

THROTTLE = {0x4: POWER_CAP, 0x8: "hardware slowdown", 0x10: "sync boost", 0x20: "heat", 0x40: "heat (hardware)", 0x80: "power brake"}
"""Bits of NVML's clocks event reasons. Idle (0x1) and application clocks (0x2) are no throttling."""

DISTURBING = {"hardware slowdown", "heat", "heat (hardware)", "power brake"}
"""The power cap is left out: a matrix product on a data-centre card runs at it all the time, which is its steady state."""

OTHERS_PERCENT = 5
_QUERY = "uuid,clocks.sm,clocks.mem,temperature.gpu,power.draw,clocks_throttle_reasons.active"


def state(device: DeviceIdentity) -> DeviceState:
    """The GPU now, neighbours' work in the last second included; a record that says why in `noisy` where nothing answers."""
    if installed("pynvml"):
        return _ask_nvml(device, time.time() - 1.0)
    return _from_smi(device)


def guard(device: DeviceIdentity) -> Guard:
    """Looks at clocks, throttling and neighbours' work around each batch; nvidia-smi is too slow for that and is not asked."""
    if not installed("pynvml"):
        return lambda: Seen

    def begin() -> Callable[[], Seen]:
        start = _ask_nvml(device)

        def end() -> Seen:
            last = _ask_nvml(device, start.at)
            return Seen((start, last), last.noisy)

        return end

    return begin


def energy_meter(device: DeviceIdentity) -> Callable[[], float]:
    """Reads the joules that the whole GPU has used since its driver was loaded; raises Unknown where it does not tell."""
    if not installed("pynvml"):
        raise Unknown("the package nvidia-ml-py is not installed")
    import pynvml

    def read() -> float:
        return float(pynvml.nvmlDeviceGetTotalEnergyConsumption(_handle(device.uuid, os.getpid()))) / 1e3

    try:
        read()
    except pynvml.NVMLError as error:
        raise Unknown(f"this GPU does not tell its energy ({error})") from error
    return read


def _ask_nvml(device: DeviceIdentity, since: float | None = None) -> DeviceState:
    import pynvml

    try:
        return _from_nvml(pynvml, _handle(device.uuid, os.getpid()), since)
    except pynvml.NVMLError as error:
        return DeviceState("cuda", time.time(), noisy=f"the GPU's state is unknown: {error}")


@lru_cache(maxsize=8)
def _handle(uuid: str, pid: int) -> Any:
    """Initialised once; once more in a process that was forked off (`pid`), where the parent's connection must not be used."""
    import pynvml

    pynvml.nvmlInit()
    raw = uuid.removeprefix("cuda-")
    dashed = "-".join((raw[:8], raw[8:12], raw[12:16], raw[16:20], raw[20:]))
    return pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{dashed}")


def _from_nvml(nvml: Any, handle: Any, since: float | None) -> DeviceState:
    """`since`: from when on neighbours' work counts, seconds since the epoch; None does not look for any."""

    def ask(name: str, *args: Any) -> Any:
        """None where this GPU or this driver does not tell."""
        try:
            return getattr(nvml, name)(handle, *args)
        except (nvml.NVMLError, AttributeError):
            return None

    power, energy = ask("nvmlDeviceGetPowerUsage"), ask("nvmlDeviceGetTotalEnergyConsumption")
    reasons = ask("nvmlDeviceGetCurrentClocksEventReasons") or ask("nvmlDeviceGetCurrentClocksThrottleReasons") or 0
    others = _others(ask("nvmlDeviceGetComputeRunningProcesses") or ())
    busy = () if since is None else _busy(ask("nvmlDeviceGetProcessUtilization", int(since * 1e6)) or ())
    throttle = _reasons(reasons)
    return DeviceState(
        "cuda",
        time.time(),
        mhz=ask("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_SM),
        memory_mhz=ask("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_MEM),
        temperature_c=ask("nvmlDeviceGetTemperature", nvml.NVML_TEMPERATURE_GPU),
        power_w=None if power is None else power / 1e3,
        energy_j=None if energy is None else energy / 1e3,
        throttle=throttle,
        others=others,
        noisy=_words(throttle, busy),
    )


def _others(processes: Any) -> tuple[str, ...]:
    """Other processes that hold a context. In a container ids may be of another namespace: a single stranger is then ourselves."""
    if len(processes) == 1 and not os.path.exists(f"/proc/{processes[0].pid}"):
        return ()
    return tuple(f"process {p.pid} ({(p.usedGpuMemory or 0) >> 20} MB)" for p in processes if p.pid != os.getpid())


def _busy(samples: Any) -> tuple[str, ...]:
    visible = [s for s in samples if s.pid != os.getpid() and os.path.exists(f"/proc/{s.pid}")]
    return tuple(f"process {s.pid} used {s.smUtil}% of the GPU" for s in visible if s.smUtil > OTHERS_PERCENT)


def _reasons(bits: int) -> tuple[str, ...]:
    return tuple(text for bit, text in THROTTLE.items() if bits & bit)


def _words(throttle: tuple[str, ...], busy: tuple[str, ...]) -> str:
    slowed = [f"clocks held down by {reason}" for reason in throttle if reason in DISTURBING]
    return "; ".join([*slowed, *busy])


def _from_smi(device: DeviceIdentity) -> DeviceState:
    try:
        out = subprocess.run(
            ["nvidia-smi", f"--query-gpu={_QUERY}", "--format=csv,noheader,nounits"],
            capture_output=True, text=True, check=True, timeout=20,
        ).stdout  # fmt: skip
    except (OSError, subprocess.SubprocessError) as error:
        return DeviceState("cuda", time.time(), noisy=f"the GPU's state is unknown: {error}")
    raw = device.uuid.removeprefix("cuda-")
    rows = [[field.strip() for field in line.split(",")] for line in out.splitlines()]
    row = next((row for row in rows if len(row) == 6 and row[0].removeprefix("GPU-").replace("-", "") == raw), None)
    if row is None:
        return DeviceState("cuda", time.time(), noisy="the GPU's state is unknown: nvidia-smi does not list this GPU")
    return smi_state(row)


def smi_state(row: list[str]) -> DeviceState:
    """A row of nvidia-smi: uuid, SM MHz, memory MHz, degrees, watts, throttle bits; '[N/A]' is unknown."""
    sm, memory, temperature, power = (float(text) if text.replace(".", "", 1).isdigit() else None for text in row[1:5])
    throttle = _reasons(int(row[5], 16) if row[5].startswith("0x") else 0)
    whole = [None if value is None else int(value) for value in (sm, memory, temperature)]
    return DeviceState(
        "cuda", time.time(), mhz=whole[0], memory_mhz=whole[1], temperature_c=whole[2], power_w=power,
        throttle=throttle, noisy=_words(throttle, ()),
    )  # fmt: skip
