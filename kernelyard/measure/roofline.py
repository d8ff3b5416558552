"""Where a time stands between what is possible and what the device can do.

The ceiling of a workload is the best copy of as many bytes as it must move, timed in the same interleaved run as the
kernels under it, or its floating-point operations at the rate of the dtype's matrix product, or of float32's where that is
higher (a CPU without instructions for a narrow dtype widens it), whichever takes longer.
A kernel may pass it (it reads more than it writes, or its data stays in a cache that the copy's leaves), and is then
shown above 100% with that reason. The floor, under which a time is called impossible, is lower: the best rates seen
anywhere, data hot in cache and products in any dtype included (float32 may be asked for in TF32).
"""

from __future__ import annotations

from dataclasses import dataclass

from kernelyard.measure.arguments import MB, last_level_cache_bytes
from kernelyard.measure.ceilings import Ceilings, best_copy
from kernelyard.measure.ceilings import ceilings as ceilings
from kernelyard.measure.copying import copier, copy_arguments
from kernelyard.measure.protocol import Candidate
from kernelyard.registry.lazy import torch
from kernelyard.registry.op import Op
from kernelyard.registry.spec import Cost, Timing, Workload

TOO_FAST = 0.9
"""A time below this share of the floor is impossible; above it, the floor itself may have been measured a little slow."""

TOO_FAST_IN_NOISE = 0.25
"""The share where the ceilings were measured in noise: three neighbours on every core would have to have been there throughout."""

CLOCK_TELLS_US = 1.0
"""A time of 0 is one that the clock could not tell from nothing, which is well under this for every clock here."""


@dataclass(frozen=True)
class Standing:
    """`percent` of the ceiling (None without a time or work to do), `above` why it may be over 100, `impossible` why no time is real."""

    percent: float | None
    above: str = ""
    impossible: str = ""


def copy_candidate(op: Op, workload: Workload, name: str = "copy") -> Candidate:
    """The workload's copy, the best way at its size, as one more candidate: a ceiling of the same minute as the kernels under it."""
    nbytes = op.cost(workload).bytes
    way = best_copy(nbytes, workload.device).way
    return Candidate(name, op, workload, copier(way), arguments=lambda: copy_arguments(nbytes, workload.device))


def copy_fits(nbytes: int, device_type: str) -> bool:
    """Whether the copy's arguments have room on a GPU beside those of the kernels; a CPU's rotation looks after that itself."""
    return device_type == "cpu" or 2 * nbytes < 0.9 * torch.cuda.mem_get_info()[0]


def standing(cost: Cost, timing: Timing, dtype: str, found: Ceilings, copied_us: float | None = None) -> Standing:
    """Where a device time stands. `copied_us` is the copy's, of the same run; without it the large copy's rate is taken."""
    limit = limit_us(cost, dtype, found, copied_us)
    percent = 100 * limit / timing.median_us if timing.median_us and limit else None
    reason = impossible(cost, timing, found)
    above = _above(cost, timing, limit, found) if percent is not None and percent > 100 and not reason else ""
    return Standing(percent, above, reason)


def limit_us(cost: Cost, dtype: str, found: Ceilings, copied_us: float | None = None) -> float:
    """The least time that the ceilings allow: the copy, or the operations at the matrix rate."""
    copied = cost.bytes / (found.copy_gbps * 1e3) if copied_us is None else copied_us
    return max(copied if cost.bytes else 0.0, _compute_us(cost, found.product_tflops(dtype)))


def impossible(cost: Cost, timing: Timing, found: Ceilings) -> str:
    """Empty, or a sentence: this time is below what the device can do, so the kernel did not do the work (or the clock failed)."""
    # Between single events the output may still lie in L2 when the clock stops: as much again may not have moved yet.
    moved = cost.bytes / (found.peak_gbps * 1e3) / (2 if timing.clock == "events" else 1)
    floor = max(moved, _compute_us(cost, max(found.matrix_tflops.values(), default=0.0)))
    allowed = floor * (TOO_FAST_IN_NOISE if found.noisy else TOO_FAST)
    if timing.mode != "device" or max(timing.median_us, 0 if timing.median_us else CLOCK_TELLS_US) >= allowed:
        return ""
    told = f"{timing.median_us:.3g} us" if timing.median_us else "less than the clock can tell"
    return (
        f"impossible: {told} for {cost.bytes / MB:.3g} MB and {cost.flops / 1e9:.3g} GFLOP, "
        f"which take this device {floor:.3g} us at the best rates measured on it"
    )


def _compute_us(cost: Cost, tflops: float) -> float:
    return cost.flops / (tflops * 1e6) if tflops else 0.0


def _above(cost: Cost, timing: Timing, limit: float, found: Ceilings) -> str:
    """Why a time under the ceiling's is possible, in words."""
    if timing.high_us >= limit:
        return "above 100%: no more than the uncertainty of its time"
    if found.device_key.startswith("cuda/"):
        return (
            "above 100%: it beats a copy of as many bytes; memory reads faster than it writes, and a kernel that reads more than it "
            "writes, or whose output stays in L2, moves its bytes faster than a copy, which writes half of them"
        )
    cached = f" part of its {cost.bytes / MB:.3g} MB stays in the caches," if cost.bytes < 2 * last_level_cache_bytes() else ""
    return (
        f"above 100%: it beats torch's best copy of as many bytes;{cached} it reads more than it writes, or it streams its stores past "
        "the caches, where the copy first reads each line that it writes"
    )
