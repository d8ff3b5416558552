"""Workloads that no stored choice served: said once in a process, and handed over at its end to whoever keeps them.

A miss is noted when a signature is bound, so a call that was bound pays nothing. The registry knows no store: `connect` names the
function that keeps them, as in `choices`. A process that is killed hands nothing over.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from kernelyard.registry.lazy import load
from kernelyard.registry.spec import Miss, Missed, Workload

if TYPE_CHECKING:  # `import kernelyard` imports this module, and must cost nothing
    from kernelyard.registry.dispatch import Selection

MOST = 1000
"""Workloads that are remembered: a model with ever new shapes must not fill memory, or the list of its misses."""
WORDS = {
    Missed.UNTUNED: "has no tuned choice",
    Missed.STALE: "has a stored choice that can't be used",
    Missed.FALLBACK: "has no tuned choice, and falls back to the reference",
}

Keeper = Callable[[Sequence[Miss]], None]
"""Keeps misses for other processes to list; raises nothing for a home that can't be written."""

_keeper: Keeper | str | None = None
_met: dict[tuple[Workload, Missed], Selection] = {}
_lock = threading.Lock()
_warned = False


def connect(keeper: Keeper | str | None) -> None:
    """Who keeps misses when the process ends: a function, or 'module:function' imported then, or nobody."""
    global _keeper
    _keeper = keeper


def note(selection: Selection) -> None:
    """Remember a miss, and warn of the first one in this process."""
    global _warned
    if selection.missed is None:
        return
    with _lock:
        if len(_met) < MOST:
            _met[selection.workload, selection.missed] = selection
        first, _warned = not _warned, True
    if first:
        warnings.warn(_text(selection), RuntimeWarning, stacklevel=_outside())


def met() -> tuple[Miss, ...]:
    """The misses of this process so far, each workload and cause once."""
    return tuple(_miss(selection) for selection in list(_met.values()))


def forget() -> None:
    """Drop what was met, and warn again of what comes."""
    global _warned
    with _lock:
        _met.clear()
        _warned = False


@atexit.register
def hand_over() -> None:
    """Give what was met to the keeper, once."""
    if _keeper is None or not _met:
        return
    found = met()
    _met.clear()
    keeper: Keeper = load(_keeper) if isinstance(_keeper, str) else _keeper
    keeper(found)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_met.clear)  # they are the parent's to hand over


def _miss(selection: Selection) -> Miss:
    from kernelyard.registry.machine import identity

    one = selection.workload
    rejected = f"; {selection.rejected[0].kernel}: {selection.rejected[0].reason}" if selection.missed is Missed.STALE else ""
    assert selection.missed is not None
    return Miss(
        selection.op, one.label(), one.key(), identity(one.device).key(), selection.missed, selection.kernel.name,
        selection.reason + rejected, _command(selection),
    )  # fmt: skip


def _command(selection: Selection) -> str:
    from kernelyard.registry import registry
    from kernelyard.registry.points import command_for

    op = registry.current().ops.get(selection.op)  # None: plugins have changed since
    return "" if op is None else command_for(op, selection.workload)


def _text(selection: Selection) -> str:
    assert selection.missed is not None
    run = _command(selection)
    do = f"Run `{run}`" if run else "Run your model inside `kernelyard.capture` and tune the file"
    told = f"{selection.op} on {selection.workload.label()} {WORDS[selection.missed]}; {selection.kernel.name} serves"
    return f"kernelyard: {told}. {do}. Others are not said again: `kernelyard.selections()`, and `kernelyard cache misses` afterwards."


def _outside() -> int:
    """How far up the caller of `note` has the first frame that is neither ours nor torch's."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").split(".")[0] in ("kernelyard", "torch"):
        level, frame = level + 1, frame.f_back
    return level
