"""How long things may take, and how long trials and finals are timed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

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
    on two busy cores.
    """

    build_s: float = 120.0
    check_s: float = 30.0
    time_s: float = 30.0
    compile_s: float = 300.0
    device_wait_s: float = 3600.0
    ceilings_s: float = 180.0
    trial: Options = field(default_factory=lambda: {"batches": 3, "most_batches": 3, "budget_s": 0.1})
    finals: Options = field(default_factory=lambda: {"batches": 5, "most_batches": 10, "budget_s": 1.5})
    again: Options = field(default_factory=lambda: {"batches": 12, "most_batches": 15, "budget_s": 4.0, "seed": 1})
    call: Options = field(default_factory=lambda: {"batches": 3, "most_batches": 3, "budget_s": 0.3})
