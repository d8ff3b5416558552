"""What a kind of device can do at best, measured by the protocol and kept: bandwidths, matrix rates, the time of a copy.

Neighbours and a slow clock only ever take from a rate, so that of a ceiling is taken from the least sample.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from kernelyard.measure import ceiling_file, device
from kernelyard.measure.arguments import MB, Rotation, rotate
from kernelyard.measure.clocks import stopwatches
from kernelyard.measure.copying import copier, copies
from kernelyard.measure.interleave import Plan, interleave
from kernelyard.measure.measured import PROTOCOL, Measured
from kernelyard.registry.backend import Executable
from kernelyard.registry.lazy import torch
from kernelyard.registry.machine import identity

if TYPE_CHECKING:
    from torch import Tensor

PLANS = {
    "cpu": Plan(batches=3, most_batches=3, budget_s=0.3, warm_up_s=0.03),
    "cuda": Plan(batches=3, most_batches=3, budget_s=0.5, warm_up_s=0.2),  # an idle GPU's clock takes so long to rise
}
COPY_BYTES = {"cpu": 128 * MB, "cuda": 2048 * MB}  # read and written; many times any L2, and a CPU's private caches
CPU_HOT_BYTES = 1 * MB  # a core's second-level cache on server parts
MATRIX_SIZES = {
    "cpu": {"float32": (512, 1024), "bfloat16": (512, 1024)},
    "cuda": {"float32": (4096, 8192), "bfloat16": (4096, 8192), "float16": (4096, 8192)},
}
"""N of N x N x N products, the best of which is the rate: on an H200 8192 draws more power and may run 10% slower than 4096.
float16 is left out on CPUs, many of which emulate it for seconds."""

NOISY_S = 600.0
"""Ceilings measured in noise are measured anew after so long: until then, every command would pay for the same noise."""


@dataclass(frozen=True)
class Ceilings:
    """Rates of one kind of device. Bandwidths count bytes read plus bytes written.

    peak_gbps      the best of all bandwidths, of data that stays in cache included
    matrix_tflops  by dtype, on normal random values (zeros run faster)
    spreads        width of each rate's 95% interval as a share of it: 'copy', 'read' and the dtypes
    noisy          as in a Timing: rates measured in noise may be too low
    """

    device_key: str
    measured_at: str
    copy_gbps: float
    read_gbps: float
    peak_gbps: float
    matrix_tflops: Mapping[str, float] = field(default_factory=dict)
    spreads: Mapping[str, float] = field(default_factory=dict)
    protocol: str = PROTOCOL
    noisy: str = ""

    def product_tflops(self, dtype: str) -> float:
        """The rate of a dtype's products: its own, or float32's where a CPU is faster by widening; 0 where its own is not known."""
        own = self.matrix_tflops.get(dtype, 0.0)
        return max(own, self.matrix_tflops.get("float32", 0.0)) if own else 0.0


@dataclass(frozen=True)
class Copy:
    """The best copy of so many bytes: which way, and its median time."""

    way: str
    median_us: float


_copies_in_noise: dict[tuple[str, int], Copy] = {}


def ceilings(device_type: str, refresh: bool = False) -> Ceilings:
    """The device's ceilings, from the home folder if they were measured before, else measured now (5 to 10 seconds)."""
    key = identity(device_type).key()
    stored = ceiling_file.read(key)
    old = time.time() - stored.get("at", 0.0) > NOISY_S
    if not refresh and "rates" in stored and not (stored["rates"].get("noisy") and old):
        return Ceilings(**stored["rates"])
    found = _measure_ceilings(device_type)
    ceiling_file.update(key, {"rates": asdict(found), "at": time.time()})
    return found


def best_copy(nbytes: int, device_type: str) -> Copy:
    """The fastest way to move so many bytes in all, half of them read and half written; kept by size, unless measured in noise."""
    key = identity(device_type).key()
    kept = ceiling_file.read(key).get("copies", {})
    if str(nbytes) in kept:
        return Copy(**kept[str(nbytes)])
    if (key, nbytes) in _copies_in_noise:
        return _copies_in_noise[key, nbytes]
    measured = timed(device_type, copies(nbytes, device_type))
    way = min(measured.names, key=lambda name: measured[name].median_us)
    found = Copy(way, measured[way].median_us)
    if measured[way].noisy:
        _copies_in_noise[key, nbytes] = found
    else:
        ceiling_file.update(key, {"copies": {**kept, str(nbytes): asdict(found)}})
    return found


def _measure_ceilings(device_type: str) -> Ceilings:
    size, rates, spreads = COPY_BYTES[device_type], dict[str, float](), dict[str, float]()
    bandwidth = timed(device_type, {**copies(size, device_type), "read": _read_of(size, device_type)})
    read_us = _least_us(bandwidth, "read")
    way = min((name for name in bandwidth.names if name != "read"), key=lambda name: _least_us(bandwidth, name))
    spreads = {"copy": bandwidth.interval(way).spread, "read": bandwidth.interval("read").spread}
    noise = [bandwidth.noise]
    for dtype, sizes in MATRIX_SIZES[device_type].items():
        products = timed(device_type, {str(n): _product(device_type, dtype, n) for n in sizes})
        best = max(sizes, key=lambda n: n**3 / _least_us(products, str(n)))
        rates[dtype] = 2 * best**3 / _least_us(products, str(best)) / 1e6
        spreads[dtype] = products.interval(str(best)).spread
        noise.append(products.noise)
    copy, read = size / _least_us(bandwidth, way) / 1e3, size / read_us / 1e3
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    peak = max(copy, read, _hot_gbps(device_type))
    return Ceilings(identity(device_type).key(), now, copy, read, peak, rates, spreads, noisy=next(filter(None, noise), ""))


def _least_us(measured: Measured, name: str) -> float:
    return min(map(min, measured.samples[name]))


def _product(device_type: str, dtype: str, n: int) -> tuple[Executable, Rotation]:
    a, b = (torch.randn(n, n, device=device_type).to(getattr(torch, dtype)) for _ in range(2))

    def into(outputs: tuple[Tensor, ...], x: Tensor, y: Tensor) -> None:
        torch.mm(x, y, out=outputs[0])

    return Executable(torch.mm, into), rotate((torch.empty_like(a),), (a, b), device_type)


def _read_of(nbytes: int, device_type: str) -> tuple[Executable, Rotation]:
    def into(outputs: tuple[Tensor, ...], source: Tensor) -> None:
        torch.sum(source, dim=0, out=outputs[0])

    source, total = torch.rand(nbytes // 4, device=device_type), torch.empty((), device=device_type)
    return Executable(torch.sum, into), rotate((total,), (source,), device_type)


def _hot_gbps(device_type: str) -> float:
    """Bandwidth of a copy that stays in cache: a GPU's L2, or a core's own, times the cores that may each do so."""
    cpu = device_type == "cpu"
    nbytes = CPU_HOT_BYTES if cpu else torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size // 4
    source = torch.rand(nbytes // 8, device=device_type)
    rotation = Rotation([((torch.empty_like(source),), (source,))], nbytes, "hot")
    measured = timed(device_type, {"copy": (copier("one thread" if cpu else "elementwise kernel"), rotation)})
    return nbytes / _least_us(measured, "copy") / 1e3 * (device.usable_cores() if cpu else 1)


def timed(device_type: str, work: Mapping[str, tuple[Executable, Rotation]]) -> Measured:
    """Against each other, by the protocol, alone on the device."""
    where = identity(device_type)
    with device.lock(where):
        return interleave(stopwatches(work, device_type, "device"), PLANS[device_type], "device", device.guard(where))
