"""What a kernel's time means, in three sentences: how near its ceiling, what it takes of the device, what bounds it.

Only from figures that were measured or that the compiler told. What these leave open is said to be open.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kernelyard.measure.arguments import MB
from kernelyard.measure.ceilings import Ceilings
from kernelyard.measure.occupancy import Launch, Multiprocessor, Occupancy, occupancy
from kernelyard.registry.op import Op
from kernelyard.registry.spec import Cost, Timing, Workload

NEAR = 0.8
"""Of the copy's rate, or of the matrix rate: from here on the kernel is bound by it."""

EMPTY = 2.0
"""Times an empty kernel: up to here half the time or more is not the kernel's work."""

LOW_SHARE = 0.25
"""Of a multiprocessor's warps: below, loads in flight may be too few to hide memory's latency."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """`multiprocessor` as `occupancy.multiprocessor()` tells it; `empty_us` the time of an empty kernel by the clock of the timing, such
    as that of the least copy (`ceilings.best_copy(32, "cuda").median_us`). None where not told.
    """

    multiprocessor: Multiprocessor | None = None
    empty_us: float | None = None


@dataclass(frozen=True, slots=True)
class Cpu:
    """`threads` that run the kernel (torch.get_num_threads()); `cache_bytes` of the last level, 0 where the system does not tell
    (`arguments.last_level_cache_bytes()`).
    """

    threads: int
    cache_bytes: int


def explain(
    op: Op, workload: Workload, timing: Timing, *, resources: Mapping[str, int], limit_us: float, copy_us: float | None,
    ceilings: Ceilings, facts: Gpu | Cpu,
) -> tuple[str, str, str]:  # fmt: skip
    """(time against its ceiling, what it takes of the device, what bounds it); nothing is measured here.

    resources   of the Executable: registers, spills, shared_bytes, programs, warps, as far as told
    limit_us    the ceiling's time (`roofline.limit_us`); 0 where there is none
    copy_us     the time of a copy of as many bytes, of the same run if there was one; None: the large copy's rate is taken
    ceilings    the device's rates
    """
    cost = op.cost(workload)
    copied = cost.bytes / (ceilings.copy_gbps * 1e3) if copy_us is None else copy_us
    rate = ceilings.product_tflops(workload.dtype)
    shares = _Shares(copied / timing.median_us, _tflops(cost, timing) / rate if rate else None) if timing.median_us else None
    held = _occupancy(resources, facts) if isinstance(facts, Gpu) else None
    taken = _on_gpu(resources, held) if isinstance(facts, Gpu) else _on_cpu(cost, facts)
    return _against(cost, timing, limit_us, ceilings), taken, _bound(cost, timing, shares, resources, held, facts)


@dataclass(frozen=True, slots=True)
class _Shares:
    """Of the copy's rate, and of the matrix rate of the dtype."""

    memory: float
    compute: float | None


def _tflops(cost: Cost, timing: Timing) -> float:
    return cost.flops / timing.median_us / 1e6


def _against(cost: Cost, timing: Timing, limit_us: float, found: Ceilings) -> str:
    us = timing.median_us
    if not us:
        return "No time could be told: the clock is too coarse for it."
    moved = f"the op's {cost.bytes / MB:.3g} MB at {cost.bytes / us / 1e3:.4g} GB/s (large copy: {found.copy_gbps:.4g})"
    rates = f"{moved} and {_tflops(cost, timing):.3g} TFLOP/s"
    if not limit_us:
        return f"{us:.4g} us, without a ceiling: {rates}."
    return f"{us:.4g} us, {100 * limit_us / us:.0f}% of its ceiling of {limit_us:.4g} us: {rates}."


def _occupancy(resources: Mapping[str, int], facts: Gpu) -> Occupancy | None:
    """None where anything that it follows from is not told."""
    names = ("registers", "shared_bytes", "warps", "programs")
    if facts.multiprocessor is None or any(name not in resources for name in names):
        return None
    registers, shared, warps, programs = (resources[name] for name in names)
    found = occupancy(Launch(registers, shared, warps, programs), facts.multiprocessor)
    return found if found.blocks else None


def _on_gpu(resources: Mapping[str, int], held: Occupancy | None) -> str:
    units = {"registers": "registers a thread", "spills": "spills", "shared_bytes": "bytes of shared memory a block"}
    told = [f"{resources[name]} {unit}" for name, unit in units.items() if name in resources]
    untold = [name.replace("_", " ") for name in (*units, "programs", "warps") if name not in resources]
    words = ", ".join(told) or "The compiler tells nothing of it"
    if untold:
        words += f"; not told: {', '.join(untold)}"
    if held is None:
        return f"{words}; so its occupancy is unknown."
    limit = "full" if held.share == 1 else f"limited by {held.limiter}"
    return f"{words}; occupancy {100 * held.share:.0f}% ({limit}, {held.blocks} blocks a multiprocessor), {held.waves:.3g} waves."


def _on_cpu(cost: Cost, facts: Cpu) -> str:
    threads = f"{facts.threads} thread{'s' * (facts.threads != 1)}"
    moved = f"{cost.bytes / MB:.3g} MB"
    if not facts.cache_bytes:
        return f"{threads}; the op moves {moved}, and the size of the last-level cache is not told."
    fits = "fit, resident if they were there before" if cost.bytes <= facts.cache_bytes else "don't fit, so they stream from memory"
    return f"{threads}; the op's {moved} {fits}: the last-level cache has {facts.cache_bytes / MB:.4g} MB."


def _bound(
    cost: Cost, timing: Timing, shares: _Shares | None, resources: Mapping[str, int], held: Occupancy | None, facts: Gpu | Cpu
) -> str:
    """The first that the figures prove, else what they suggest, else that they don't tell.

    Launch latency comes first: near an empty kernel's time, the copy too takes no less, and its rate tells nothing of memory.
    """
    if shares is None:
        return "What bounds it is not clear: there is no time."
    if isinstance(facts, Gpu) and facts.empty_us and timing.median_us <= EMPTY * facts.empty_us:
        return f"Bound by launch latency: an empty kernel takes {facts.empty_us:.3g} us, this one {timing.median_us:.3g}."
    if cost.bytes and shares.memory >= NEAR and shares.memory >= (shares.compute or 0.0):
        return f"Bound by memory: {100 * shares.memory:.0f}% of the rate of a copy of as many bytes."
    if shares.compute is not None and shares.compute >= NEAR:
        return f"Bound by compute: {100 * shares.compute:.0f}% of the dtype's matrix rate."
    return _suspected(resources, held) or _unclear(shares)


def _suspected(resources: Mapping[str, int], held: Occupancy | None) -> str:
    """What the compiler's figures point to, where neither memory nor compute is near its ceiling."""
    if spills := resources.get("spills"):
        return f"Probably bound by spills: {spills} registers are kept in memory, and neither memory nor compute is near its ceiling."
    if held is not None and held.waves < 1:
        return f"Probably bound by latency: its programs fill {100 * held.waves:.0f}% of one wave, too few warps to hide it."
    if held is not None and held.share < LOW_SHARE:
        return f"Probably bound by occupancy: {100 * held.share:.0f}% of the warps, limited by {held.limiter}, hide little latency."
    return ""


def _unclear(shares: _Shares) -> str:
    compute = "" if shares.compute is None else f" and {100 * shares.compute:.0f}% of the matrix rate"
    return f"What bounds it is not clear from these figures: {100 * shares.memory:.0f}% of the copy's rate{compute}."
