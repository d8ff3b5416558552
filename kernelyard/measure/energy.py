"""Joules of one call, by the device's own counter: NVML's on a GPU, RAPL's (/sys/class/powercap) on a CPU.

A counter is of the whole device, idle power and neighbours included, and moves only every 1 to 100 ms. So a candidate runs
by itself, back to back, for at least half a second from one move of the counter to another: both ends are then off by no
more than the few milliseconds of work between two looks at it. Nothing is flushed between calls. Sources: NVML's
nvmlDeviceGetTotalEnergyConsumption (mJ since the driver was loaded, from Volta on); Linux, Documentation/power/powercap
(energy_uj, which starts again at max_energy_range_uj).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from kernelyard.measure.clocks import Stopwatch
from kernelyard.measure.state import Unknown
from kernelyard.registry.spec import DeviceIdentity

STRETCH_S = 0.5
PIECE_US = 5000.0
STANDSTILL_S = 1.0
POWERCAP = Path("/sys/class/powercap")

Meter = Callable[[], float]
"""Joules so far, of the whole device."""


@dataclass(frozen=True)
class Energy:
    """Joules of one call by candidate. `absent` says why there are none; `source` names the counter."""

    joules: Mapping[str, float] = field(default_factory=dict)
    source: str = ""
    absent: str = ""


def measure_energy(watches: Mapping[str, Stopwatch], calls: Mapping[str, int], device: DeviceIdentity) -> Energy:
    """Runs each candidate for its stretch, one after the other; `calls` are those of a sample, as calibrated."""
    try:
        read, source = meter(device)
        return Energy({name: joules_per_call(watch, calls[name], read) for name, watch in watches.items()}, source)
    except Unknown as reason:
        return Energy(absent=str(reason))


def meter(device: DeviceIdentity) -> tuple[Meter, str]:
    """The device's counter and its name; raises Unknown."""
    if device.type == "cuda":
        from kernelyard.measure import nvidia

        return nvidia.energy_meter(device), "NVML, the whole GPU"
    return rapl()


def joules_per_call(watch: Stopwatch, calls: int, read: Meter, now: Callable[[], float] = time.monotonic) -> float:
    """From one move of the counter to the first one after STRETCH_S; raises Unknown where it stands still."""
    piece = _piece(watch, calls)
    _, start = _until_it_moves(watch, piece, read, now)
    begun, done, joules = now(), 0, start
    while now() - begun < STRETCH_S:
        watch.run(piece)
        done += piece
    more, joules = _until_it_moves(watch, piece, read, now)
    return (joules - start) / (done + more)


def _piece(watch: Stopwatch, calls: int) -> int:
    """Calls between two looks at the counter: some milliseconds of them."""
    sample_us = max(watch.read(calls), 1e-3)
    return max(int(PIECE_US / sample_us), 1) * calls


def _until_it_moves(watch: Stopwatch, piece: int, read: Meter, now: Callable[[], float]) -> tuple[int, float]:
    """Calls made until the counter shows another value, and that value."""
    before, begun, done = read(), now(), 0
    while (joules := read()) == before:
        if now() - begun > STANDSTILL_S:
            raise Unknown(f"the counter of energy stood still for {STANDSTILL_S:g} s of work")
        watch.run(piece)
        done += piece
    return done, joules


def rapl(root: Path | None = None) -> tuple[Meter, str]:
    """The sum over all packages of this machine; raises Unknown where there are none or they may not be read."""
    root = POWERCAP if root is None else root
    zones = [path for path in sorted(root.glob("intel-rapl:*")) if path.name.count(":") == 1 and _text(path / "name").startswith("package")]
    if not zones:
        raise Unknown(f"this CPU does not tell its energy: {root} lists no package")
    packages = [_package(zone) for zone in zones]
    return lambda: sum(package() for package in packages), f"RAPL, {len(packages)} package{'s' if len(packages) > 1 else ''}"


def _package(zone: Path) -> Meter:
    counter, whole = zone / "energy_uj", _number(zone / "max_energy_range_uj")
    last, turns = _number(counter), 0

    def read() -> float:
        nonlocal last, turns
        value = _number(counter)
        turns += value < last
        last = value
        return (value + turns * whole) / 1e6

    return read


def _number(path: Path) -> int:
    text = _text(path)
    if not text.isdigit():
        raise Unknown(f"{path} does not hold a number")
    return int(text)


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError as error:
        raise Unknown(f"{path} can't be read: {error.strerror}") from error
