"""The CPU's monotonic clock around a run of calls, calibrated: its own step and cost are measured, and so is the loop around nothing."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice, pairwise
from typing import Any

from kernelyard.measure.arguments import Rotation
from kernelyard.measure.clocks import Stopwatch
from kernelyard.registry.backend import Executable

Loop = Callable[[Rotation, int], None]
ALLOCATES = "outputs are allocated inside the time, for all candidates alike: not all can write into given tensors"

BLOCK, BLOCKS = 100, 20
MOST_READS = 1_000_000


@dataclass(frozen=True)
class Clock:
    """`step_us` is the least by which two readings differ, `cost_us` what a reading takes; inf where the clock stands still."""

    step_us: float
    cost_us: float

    @property
    def resolution_us(self) -> float:
        """What the clock can tell apart: a sample's start and stop each cost a reading and are each off by up to a step."""
        return max(self.step_us, self.cost_us)


@lru_cache(maxsize=1)
def clock() -> Clock:
    """This machine's clock, measured once a process."""
    return calibrate_clock(time.perf_counter_ns)


def calibrate_clock(read_ns: Callable[[], int]) -> Clock:
    """The least step between two readings, and the cost of one in the least of twenty blocks: a neighbour only ever adds."""
    blocks = [[read_ns() for _ in range(BLOCK)] for _ in range(BLOCKS)]
    steps = [b - a for block in blocks for a, b in pairwise(block) if b > a]
    step = min(steps, default=0) or _next_step(read_ns)
    cost = min(block[-1] - block[0] for block in blocks) / (BLOCK - 1)
    return Clock(step / 1e3, cost / 1e3) if step else Clock(math.inf, math.inf)


def _next_step(read_ns: Callable[[], int]) -> int:
    """The step of a clock too coarse for a block; 0 where it stands still for a million readings."""
    first = read_ns()
    return next((now - first for now in (read_ns() for _ in range(MOST_READS)) if now > first), 0)


def device_time(executable: Executable, rotation: Rotation, *, allocating: bool = False) -> Stopwatch:
    """Outputs allocated beforehand, arguments rotated: the kernel and one call into it, nothing else of the host.

    `allocating`: some candidate of this comparison can only allocate. Then this one allocates too, or the allocator
    and the page faults of one would be held against the bare kernel of another.
    """
    if allocating or executable.into is None:
        # The results are held until every set had its turn, so that outputs are as cold here as rotated ones are.
        return _stopwatch(_holding(executable.call, len(rotation.sets)), _holding(_nothing, len(rotation.sets)), rotation, ALLOCATES)
    return _stopwatch(_writing(executable.into), _writing(_nothing), rotation)


def call_time(executable: Executable, rotation: Rotation) -> Stopwatch:
    """What Python pays for a call that allocates its outputs, waiting for them included; only the bare loop is taken off."""
    call, wait = executable.call, executable.wait
    return _stopwatch(_calling(call if wait is None else lambda *args: wait(call(*args))), _bare, rotation)


def _stopwatch(loop: Loop, empty: Loop, rotation: Rotation, note: str = "") -> Stopwatch:
    return Stopwatch(
        clock="monotonic",
        elapsed_us=lambda calls: _time(loop, rotation, calls),
        empty_us=lambda calls: _time(empty, rotation, calls),
        resolution_us=clock().resolution_us,
        cache=rotation.cache,
        note=note,
    )


def _time(loop: Loop, rotation: Rotation, calls: int) -> float:
    start = time.perf_counter_ns()
    loop(rotation, calls)
    return (time.perf_counter_ns() - start) / 1e3


def _writing(into: Callable[..., None]) -> Loop:
    def loop(rotation: Rotation, calls: int) -> None:
        for outputs, args in islice(rotation.turn, calls):
            into(outputs, *args)

    return loop


def _calling(call: Callable[..., Any]) -> Loop:
    def loop(rotation: Rotation, calls: int) -> None:
        for _, args in islice(rotation.turn, calls):
            call(*args)

    return loop


def _holding(call: Callable[..., Any], count: int) -> Loop:
    held: deque[Any] = deque(maxlen=count)

    def loop(rotation: Rotation, calls: int) -> None:
        for _, args in islice(rotation.turn, calls):
            held.append(call(*args))

    return loop


def _bare(rotation: Rotation, calls: int) -> None:
    for _, _args in islice(rotation.turn, calls):
        pass


def _nothing(*args: Any) -> None:
    return None
