"""The clock of candidates that torch's stream doesn't order: the host's, from the first call until every result is there.

JAX dispatches a call and returns at once; `block_until_ready` on what it returned is the only way to know that it was done, so an
`Executable` brings its own `wait`. No event of torch and no CUDA graph sees such work. Where one candidate of a comparison needs this
clock all are timed by it, the torch ones too, or their ratio would compare two clocks.

Limits. The host's dispatch is part of the time wherever it takes longer than the kernel (tens of microseconds a call in JAX):
short kernels look as long as their dispatch. On a GPU JAX runs its work in the order of dispatch; on a CPU it may run several calls at
once, so every result is waited for and not only the last. At most IN_FLIGHT calls are ahead of the oldest that is waited for, which
bounds memory and is enough to hide the dispatch of long kernels.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any

from kernelyard.measure import monotonic
from kernelyard.measure.clocks import Stopwatch

if TYPE_CHECKING:
    from kernelyard.measure.arguments import Rotation
    from kernelyard.registry.backend import Executable

NAME = "block_until_ready"
IN_FLIGHT = 32

Wait = Callable[[Any], None]


def device_times(executables: Mapping[str, tuple[Executable, Rotation]], device_type: str) -> dict[str, Stopwatch]:
    """One stopwatch for each candidate, all on the host's clock; on a GPU with the whole device waited for at both ends."""
    foreign = [name for name, (executable, _) in executables.items() if executable.wait is not None]
    reason = (
        f"timed by the host until results are there, all candidates alike, because {', '.join(foreign)} runs outside torch's stream; "
        "outputs are allocated and dispatch is included where it takes longer than the kernel"
    )
    return {name: _stopwatch(executable, rotation, device_type, reason) for name, (executable, rotation) in executables.items()}


def _stopwatch(executable: Executable, rotation: Rotation, device_type: str, reason: str) -> Stopwatch:
    settle, flush = _device(device_type)
    wait = executable.wait or _nothing
    window = min(len(rotation.sets), IN_FLIGHT)

    def time_us(call: Callable[..., Any], wait: Wait, count: int) -> float:
        flush()
        settle()
        held: deque[Any] = deque(maxlen=window)
        start = time.perf_counter_ns()
        for _, args in islice(rotation.turn, count):
            if len(held) == window:
                wait(held[0])
            held.append(call(*args))
        for result in held:
            wait(result)
        settle()
        return (time.perf_counter_ns() - start) / 1e3

    return Stopwatch(
        NAME, lambda count: time_us(executable.call, wait, count), empty_us=lambda count: time_us(_nothing, _nothing, count),
        resolution_us=monotonic.clock().resolution_us, cache=rotation.cache, note=reason,
    )  # fmt: skip


def _device(device_type: str) -> tuple[Callable[[], None], Callable[[], None]]:
    """How to wait for all work of the device, and how to flush its cache before a sample."""
    if device_type != "cuda":
        return _nothing, _nothing
    from kernelyard.measure import cuda

    return cuda.synchronize, cuda.flusher()


def _nothing(*args: Any) -> None:
    return None
