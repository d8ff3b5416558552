"""Global state that a kernel must leave as it found it, and the clocks that must stay the real ones."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import torch

from kernelyard.verify.watched import ON_CUDA, WATCHED, Watch

Snapshot = Mapping[str, Any]
ABSENT: tuple[object, ...] = ((), {})
"""The state of a library that was not imported yet; importing it is no change."""


def snapshot(device: torch.device) -> Snapshot:
    """The values of everything watched."""
    return {name: read() for name, (read, _) in _watched(device).items()}


def changed(before: Snapshot, after: Snapshot) -> list[str]:
    """What differs, in words: 'the default dtype (torch.float32 -> torch.float64)'."""
    return [f"{name}{_from_to(before[name], after[name])}" for name in before if before[name] not in ABSENT and before[name] != after[name]]


def restore(before: Snapshot) -> None:
    """Puts back what a kernel changed, so that the next one is not blamed for it."""
    for name, (read, put) in (WATCHED | ON_CUDA if any(name in before for name in ON_CUDA) else WATCHED).items():
        if before[name] not in ABSENT and read() != before[name]:
            put(before[name])


def _watched(device: torch.device) -> dict[str, Watch]:
    return ON_CUDA | WATCHED if device.type == "cuda" else WATCHED  # reading the former starts CUDA, which may set variables


def _from_to(old: Any, new: Any) -> str:
    if isinstance(old, dict):
        names = sorted(key for key in old.keys() | new.keys() if old.get(key) != new.get(key))
        return f" ({', '.join(names[:5])})"
    return "" if isinstance(old, (bytes, tuple)) else f" ({old} -> {new})"


CLOCKS: tuple[tuple[Any, str], ...] = (
    *((time, name) for name in ("time", "time_ns", "perf_counter", "perf_counter_ns", "monotonic", "monotonic_ns", "sleep")),
    *((torch.cuda, name) for name in ("synchronize", "Event", "current_stream")),
    *((torch.cuda.Event, name) for name in ("record", "elapsed_time", "synchronize", "query", "wait")),
    *((torch.cuda.Stream, name) for name in ("synchronize", "wait_stream", "wait_event", "record_event")),
    *((torch.cuda.CUDAGraph, name) for name in ("replay", "capture_begin", "capture_end")),
)
_REAL = tuple(getattr(owner, name) for owner, name in CLOCKS)
"""Taken when this module is imported, before any kernel is."""


def patched_clocks() -> list[str]:
    """Names of timers and synchronisations that are no longer the real ones."""
    return [
        f"{getattr(owner, '__qualname__', owner.__name__)}.{name}"
        for (owner, name), real in zip(CLOCKS, _REAL, strict=True)
        if getattr(owner, name) is not real
    ]


def restore_clocks() -> None:
    """Puts the real ones back."""
    for (owner, name), real in zip(CLOCKS, _REAL, strict=True):
        if getattr(owner, name) is not real:
            setattr(owner, name, real)
