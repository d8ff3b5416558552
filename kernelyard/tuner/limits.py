"""How long things may take, and how long trials and finals are timed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kernelyard.verify import machine
from kernelyard.verify.isolation import MemoryLimit

WHOLE = 48
"""A space of at most so many valid configs is searched whole: at 0.7 s a trial that is half a minute."""

TRIALS = 32
"""Trials of TPE in a larger space, for each kernel and workload; after 10 random ones it has 22 to learn with."""

FINALISTS = 3
"""The best few overall that go to finals besides each kernel's best: more only lengthens finals, the fourth never won."""

Options = Mapping[str, Any]
"""Keyword arguments of `measure.protocol.measure`."""


@dataclass(frozen=True)
class Limits:
    """Seconds. After its limit a job is killed and the item has timed out.

    build_s 120: the slowest native build seen took 30 s on a crowded machine, nvcc a minute. check_s, time_s: a trial
    takes well below a second. ceilings_s: 5 s on a quiet machine, once. compile_s: torch.compile with max-autotune took 90 s
    on two busy cores. memory_bytes: of a trial; None is nine tenths of what is free when the worker starts, or its share where
    several work side by side, so that a greedy config fails by itself and the searching process, the smaller one, has room.
    """

    build_s: float = 120.0
    check_s: float = 30.0
    time_s: float = 30.0
    compile_s: float = 300.0
    device_wait_s: float = 3600.0
    ceilings_s: float = 180.0
    memory_bytes: int | None = None
    trial: Options = field(default_factory=lambda: {"batches": 3, "most_batches": 3, "budget_s": 0.1})
    finals: Options = field(default_factory=lambda: {"batches": 5, "most_batches": 10, "budget_s": 1.5})
    again: Options = field(default_factory=lambda: {"batches": 12, "most_batches": 15, "budget_s": 4.0, "seed": 1})
    call: Options = field(default_factory=lambda: {"batches": 3, "most_batches": 3, "budget_s": 0.3})

    def memory(self, device: str, workers: int = 1) -> MemoryLimit:
        """What one of `workers` for devices of this type here may take: kept by the system on a CPU, watched from outside beside a GPU."""
        free = machine.free_bytes()
        most = self.memory_bytes or (int(0.9 * free / workers) if free is not None else None)
        return MemoryLimit(data_bytes=most) if device == "cpu" else MemoryLimit(resident_bytes=most)
