"""Which kernel served which workload in this process, why, and how often while somebody counted.

Noted when a signature is bound, never when it is called: a call pays nothing for it. How often is known of calls inside a
`capture` alone, which binds functions that count.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kernelyard.registry.aligned import aligned
from kernelyard.registry.spec import Config, Missed, Workload, config_key

if TYPE_CHECKING:  # `import kernelyard` leads here, and must cost nothing
    from kernelyard.registry.dispatch import Selection

Key = tuple[Workload, str, str]
"""Workload, kernel, config."""


class Tally:
    """A count that threads may share without a lock: `itertools.count` steps inside one C call, so none is lost."""

    def __init__(self) -> None:
        self.step: Callable[[], int] = itertools.count().__next__
        self._looks, self._lock = 0, threading.Lock()

    def value(self) -> int:
        """Steps so far. A look is a step itself, and taken off again."""
        with self._lock:
            seen = self.step() - self._looks
            self._looks += 1
        return seen


@dataclass(frozen=True, slots=True)
class Served:
    """One kernel in one config on one workload. `calls` are those inside captures: 0 means that nobody counted, not that nobody called."""

    op: str
    workload: Workload
    kernel: str
    config: Config
    reason: str
    missed: Missed | None
    calls: int


class Selections(tuple[Served, ...]):
    """What served, in the order it was first bound; a table as text."""

    __slots__ = ()

    def __str__(self) -> str:
        if not self:
            return "No op of kernelyard was called in this process."
        head = ("op", "workload", "device", "kernel", "calls", "missed", "because")
        return aligned([head, *(_cells(one) for one in self)])


_noted: dict[Key, Selection] = {}
_tallies: dict[Key, list[Tally]] = {}


def selections() -> Selections:
    """Every kernel that was bound to serve in this process, with the workload, the reason and the calls that were counted."""
    return Selections(_served(key, one) for key, one in list(_noted.items()))


def note(selection: Selection) -> None:
    """Remember what serves from now on."""
    _noted[key_of(selection)] = selection


def count(selection: Selection, tally: Tally) -> None:
    """Have the steps of a tally count as calls of this selection."""
    _tallies.setdefault(key_of(selection), []).append(tally)


def forget() -> None:
    """Drop what was noted and counted."""
    _noted.clear()
    _tallies.clear()


def key_of(selection: Selection) -> Key:
    """What tells two selections apart."""
    return selection.workload, selection.kernel.name, config_key(selection.config)


def _served(key: Key, one: Selection) -> Served:
    calls = sum(tally.value() for tally in _tallies.get(key, ()))
    return Served(one.op, one.workload, one.kernel.name, dict(one.config), one.reason, one.missed, calls)


def _cells(one: Served) -> tuple[str, ...]:
    calls = str(one.calls) if one.calls else "-"
    return one.op, one.workload.label(), one.workload.device, one.kernel, calls, one.missed or "-", one.reason.partition(";")[0]
