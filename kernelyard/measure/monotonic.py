"""The CPU's monotonic clock around a run of calls, calibrated against the same loop around nothing."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from itertools import islice
from typing import Any

from kernelyard.measure.arguments import Rotation
from kernelyard.measure.clocks import Stopwatch
from kernelyard.registry.backend import Executable

Loop = Callable[[Rotation, int], None]
ALLOCATES = "outputs are allocated inside the time, for all candidates alike: not all can write into given tensors"


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
    """What Python pays for a call that allocates its outputs; only the bare loop is taken off."""
    return _stopwatch(_calling(executable.call), _bare, rotation)


def _stopwatch(loop: Loop, empty: Loop, rotation: Rotation, note: str = "") -> Stopwatch:
    return Stopwatch(
        clock="monotonic",
        elapsed_us=lambda calls: _time(loop, rotation, calls),
        empty_us=lambda calls: _time(empty, rotation, calls),
        resolution_us=max(time.get_clock_info("perf_counter").resolution * 1e6, 0.001),
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
