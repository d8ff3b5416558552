"""Ceilings, measured on this device by the same protocol: how fast bytes are copied and matrices multiplied.

The ceiling of a workload is a copy of as many bytes as it must move, or its floating-point operations at the rate of
the dtype's matrix product, whichever takes longer. A copy is a plain one (`Tensor.copy_`): on a CPU a kernel that
streams its stores past the cache can beat it, and is then shown above 100%. The floor, under which a time is called
impossible, is lower: the best rate seen anywhere, data hot in cache included on a CPU.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from kernelyard.measure import ceiling_file, device
from kernelyard.measure.arguments import MB, Rotation, rotate
from kernelyard.measure.clocks import stopwatches
from kernelyard.measure.interleave import Plan, interleave
from kernelyard.measure.measured import PROTOCOL, Measured
from kernelyard.measure.protocol import Candidate
from kernelyard.registry.backend import Executable
from kernelyard.registry.lazy import torch
from kernelyard.registry.machine import identity
from kernelyard.registry.op import Op
from kernelyard.registry.spec import Cost, Timing, Workload

if TYPE_CHECKING:
    from torch import Tensor

PLANS = {
    "cpu": Plan(batches=3, most_batches=3, budget_s=0.3, warm_up_s=0.03),
    "cuda": Plan(batches=3, most_batches=3, budget_s=0.5, warm_up_s=0.2),  # an idle GPU's clock takes so long to rise
}
COPY_BYTES = {"cpu": 128 * MB, "cuda": 2048 * MB}  # read and written; many times any L2, and a CPU's private caches
HOT_BYTES = 1 * MB  # a core's second-level cache on server parts
MATRIX_SIZES = {"cpu": {"float32": 1024, "bfloat16": 512}, "cuda": {"float32": 4096, "bfloat16": 8192, "float16": 8192}}
"""N of an N x N x N product. float16 is left out on CPUs, many of which emulate it for seconds."""

TOO_FAST = 0.9
"""A time below this share of the floor is impossible; above it, the floor itself may have been measured a little slow."""


@dataclass(frozen=True)
class Ceilings:
    """Rates of one kind of device. Bandwidths count bytes read plus bytes written; `peak_gbps` is the best of all of them.

    matrix_tflops is by dtype, on normal random values (zeros run faster). `noisy` as in a Timing.
    """

    device_key: str
    measured_at: str
    copy_gbps: float
    read_gbps: float
    peak_gbps: float
    matrix_tflops: Mapping[str, float] = field(default_factory=dict)
    protocol: str = PROTOCOL
    noisy: str = ""


_in_noise: dict[str, Ceilings] = {}


def ceilings(device_type: str, refresh: bool = False) -> Ceilings:
    """The device's ceilings, from the home folder if they were measured before, else measured now (a few seconds).

    Ceilings measured in noise serve this process and are not kept: they are too low, for good if they were.
    """
    key = identity(device_type).key()
    stored = ceiling_file.read(key)
    if not refresh and "rates" in stored:
        return Ceilings(**stored["rates"])
    if refresh or key not in _in_noise:
        found = _measure_ceilings(device_type)
        if not found.noisy:
            ceiling_file.update(key, {"rates": asdict(found)})
            return found
        _in_noise[key] = found
    return _in_noise[key]


def copy_us(nbytes: int, device_type: str) -> float:
    """The time of a copy that moves so many bytes in all, half of them read and half written, cached as `ceilings` are."""
    key = identity(device_type).key()
    copies = ceiling_file.read(key).get("copies_us", {})
    if str(nbytes) in copies:
        return float(copies[str(nbytes)])
    measured = _time(device_type, {"copy": _copy_of(nbytes, device_type)})
    median = measured["copy"].median_us
    if not measured["copy"].noisy:
        ceiling_file.update(key, {"copies_us": {**copies, str(nbytes): median}})
    return median


def copy_candidate(op: Op, workload: Workload, name: str = "copy") -> Candidate:
    """The workload's copy as one more candidate, so that the ceiling is taken in the same minute as the kernels under it."""
    nbytes = op.cost(workload).bytes
    return Candidate(name, op, workload, _copier(), arguments=lambda: _copy_of(nbytes, workload.device)[1])


def limit_us(cost: Cost, dtype: str, device_type: str, copied_us: float | None = None) -> float:
    """The least time that this device's ceilings allow: a copy of the bytes, or the operations at the matrix rate.

    `copied_us` is the copy's time where it was measured with the kernels (`copy_candidate`); else `copy_us` has it.
    """
    rate = ceilings(device_type).matrix_tflops.get(dtype)
    compute = cost.flops / (rate * 1e6) if rate else 0.0
    if copied_us is None:
        copied_us = copy_us(cost.bytes, device_type) if cost.bytes else 0.0
    return max(copied_us, compute)


def percent_of_ceiling(cost: Cost, timing: Timing, *, dtype: str, device_type: str, copied_us: float | None = None) -> float | None:
    """100 at the ceiling; None where nothing has to be done or no time could be told. Arguments as in `limit_us`."""
    limit = limit_us(cost, dtype, device_type, copied_us)
    return 100 * limit / timing.median_us if timing.median_us and limit else None


def impossible(cost: Cost, timing: Timing, found: Ceilings, dtype: str) -> str:
    """Empty, or a sentence: this time is below what the device can do, so the kernel did not do the work (or the clock failed)."""
    # Between single events the output may still lie in L2 when the clock stops: as much again may not have moved yet.
    moved = cost.bytes / (found.peak_gbps * 1e3) / (2 if timing.clock == "events" else 1)
    rate = found.matrix_tflops.get(dtype)
    floor = max(moved, cost.flops / (rate * 1e6) if rate else 0.0)
    if found.noisy or timing.mode != "device" or timing.median_us >= TOO_FAST * floor:
        return ""
    return (
        f"impossible: {timing.median_us:.3g} us for {cost.bytes / MB:.3g} MB and {cost.flops / 1e9:.3g} GFLOP, "
        f"which take this device {floor:.3g} us at the best rates measured on it"
    )


def _measure_ceilings(device_type: str) -> Ceilings:
    size = COPY_BYTES[device_type]
    bandwidth = _time(device_type, {"copy": _copy_of(size, device_type), "read": _read_of(size, device_type)})
    products = {dtype: _matrix_product(device_type, dtype, n) for dtype, n in MATRIX_SIZES[device_type].items()}
    copy, read = size / _least_us(bandwidth, "copy") / 1e3, size / _least_us(bandwidth, "read") / 1e3
    rates = {dtype: 2 * MATRIX_SIZES[device_type][dtype] ** 3 / _least_us(product, "mm") / 1e6 for dtype, product in products.items()}
    noise = next((text for measured in (bandwidth, *products.values()) if (text := measured.noise)), "")
    peak = max(copy, read, _hot_gbps() if device_type == "cpu" else 0.0)
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return Ceilings(identity(device_type).key(), now, copy, read, peak, rates, noisy=noise)


def _least_us(measured: Measured, name: str) -> float:
    """The least sample: a ceiling is what the device can do, and neighbours only ever take from that."""
    return min(map(min, measured.samples[name]))


def _matrix_product(device_type: str, dtype: str, n: int) -> Measured:
    a, b = (torch.randn(n, n, device=device_type).to(getattr(torch, dtype)) for _ in range(2))

    def into(outputs: tuple[Tensor, ...], x: Tensor, y: Tensor) -> None:
        torch.mm(x, y, out=outputs[0])

    return _time(device_type, {"mm": (Executable(torch.mm, into), rotate((torch.empty_like(a),), (a, b), device_type))})


def _hot_gbps() -> float:
    """Bandwidth of a copy that stays in a core's own cache, times the cores that may each do so."""
    source = torch.rand(HOT_BYTES // 8)
    pair = ((torch.empty_like(source),), (source,))
    with _one_thread():
        measured = _time("cpu", {"copy": (_copier(), Rotation([pair], HOT_BYTES, "hot"))})
    return HOT_BYTES / _least_us(measured, "copy") / 1e3 * device.usable_cores()


@contextmanager
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _copy_of(nbytes: int, device_type: str) -> tuple[Executable, Rotation]:
    source = torch.rand(max(nbytes // 8, 1), device=device_type)
    return _copier(), rotate((torch.empty_like(source),), (source,), device_type)


def _read_of(nbytes: int, device_type: str) -> tuple[Executable, Rotation]:
    def into(outputs: tuple[Tensor, ...], source: Tensor) -> None:
        torch.sum(source, dim=0, out=outputs[0])

    source, total = torch.rand(max(nbytes // 4, 1), device=device_type), torch.empty((), device=device_type)
    return Executable(torch.sum, into), rotate((total,), (source,), device_type)


def _copier() -> Executable:
    def into(outputs: tuple[Tensor, ...], source: Tensor) -> None:
        outputs[0].copy_(source)

    return Executable(torch.clone, into)


def _time(device_type: str, work: Mapping[str, tuple[Executable, Rotation]]) -> Measured:
    where = identity(device_type)
    with device.lock(where):
        return interleave(stopwatches(work, device_type, "device"), PLANS[device_type], "device", device.guard(where))
