"""A stopwatch: one candidate bound to its arguments and to a clock. And which clock a device and a mode ask for."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from kernelyard.errors import KernelyardError, MeasurementFailed
from kernelyard.registry.lazy import torch

if TYPE_CHECKING:
    from kernelyard.measure.arguments import Rotation
    from kernelyard.registry.backend import Executable

Mode = Literal["device", "call"]


@dataclass(frozen=True)
class Stopwatch:
    """elapsed_us(n) makes n calls and returns the microseconds that they took together.

    clock          'monotonic', 'events', 'graph' or 'block_until_ready'
    grain          n must be a multiple of it (a graph replays all its calls)
    most_calls     the largest n worth asking for
    empty_us       the same for the loop around nothing; what it takes is no time of the kernel
    resolution_us  the smallest step of the clock
    lead_in        calls before each sample, not timed, as a share of n: another candidate has just run
    work(n)        the same calls back to back with nothing around them (no flush, no head start), for a meter of energy
    cache, note    what the caches hold, and what else a reader of the figure must know
    name           the candidate, for messages
    """

    clock: str
    elapsed_us: Callable[[int], float]
    grain: int = 1
    most_calls: int = 1 << 16
    empty_us: Callable[[int], float] | None = None
    resolution_us: float = 0.001
    lead_in: float = 0.125
    work: Callable[[int], None] | None = None
    cache: str = ""
    note: str = ""
    name: str = "the candidate"

    def read(self, calls: int) -> float:
        """Microseconds of so many calls, loop included; raises MeasurementFailed where the kernel or the clock fails."""
        try:
            elapsed = self.elapsed_us(calls)
        except KernelyardError:
            raise
        except Exception as error:
            raise _failed(self.name, error) from error
        if not math.isfinite(elapsed) or elapsed < 0:
            raise MeasurementFailed(f"the {self.clock} clock read {elapsed} us for {calls} calls of {self.name}.", do="No result was kept.")
        return elapsed

    def run(self, calls: int) -> None:
        """So many calls, untimed; ends when the device is done with them."""
        if self.work is None:
            self.read(calls)
            return
        try:
            self.work(calls)
        except Exception as error:
            raise _failed(self.name, error) from error

    def read_empty(self, calls: int) -> float:
        """Microseconds of the loop for so many calls of nothing; 0.0 where the clock sees no loop."""
        return self.empty_us(calls) if self.empty_us is not None else 0.0


def stopwatches(executables: Mapping[str, tuple[Executable, Rotation]], device_type: str, mode: Mode) -> dict[str, Stopwatch]:
    """One stopwatch for each candidate, all on one clock so that their ratios mean something."""
    from kernelyard.measure import jax_clock, monotonic

    if mode == "device" and any(executable.wait is not None for executable, _ in executables.values()):
        return jax_clock.device_times(executables, device_type)
    if device_type == "cpu" and mode == "device":
        allocating = any(executable.into is None for executable, _ in executables.values())
        return {
            name: monotonic.device_time(executable, rotation, allocating=allocating) for name, (executable, rotation) in executables.items()
        }
    if device_type == "cpu":
        return {name: monotonic.call_time(executable, rotation) for name, (executable, rotation) in executables.items()}
    from kernelyard.measure import cuda

    if mode == "call":
        return {name: cuda.call_time(executable, rotation) for name, (executable, rotation) in executables.items()}
    return _cuda_device_time(executables)


def _cuda_device_time(executables: Mapping[str, tuple[Executable, Rotation]]) -> dict[str, Stopwatch]:
    from kernelyard.measure import cuda

    watches = {}
    for name, (executable, rotation) in executables.items():
        try:
            watches[name] = cuda.graph_time(executable, rotation)
        except cuda.NotCapturable as error:
            reason = f"all by events: {name} can't be captured in a CUDA graph ({error})"
            return {other: cuda.event_time(e, r, reason) for other, (e, r) in executables.items()}
        except KernelyardError:
            raise
        except Exception as error:
            raise _failed(name, error) from error
    return watches


def _failed(name: str, error: Exception) -> MeasurementFailed:
    return MeasurementFailed(f"{name} raised {type(error).__name__} while being timed: {error}")


def first_call_us(executable: Executable, args: tuple[Any, ...], device_type: str = "cpu") -> float:
    """The host time of the very first call, until its results are there: loading, compilation and allocation included."""
    cuda = device_type == "cuda"
    if cuda:
        torch.cuda.synchronize()
    start = time.perf_counter_ns()
    result = executable.call(*args)
    if executable.wait is not None:
        executable.wait(result)
    if cuda:
        torch.cuda.synchronize()
    return (time.perf_counter_ns() - start) / 1e3
