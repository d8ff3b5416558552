"""Global state that a kernel must leave as it found it, and the clocks that must stay the real ones."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch

OWN_VARIABLES = ("TORCH", "PYTORCH", "TRITON", "KMP_", "PYTEST_CURRENT_TEST")
"""Environment variables that torch.compile, Triton, OpenMP and pytest set for themselves, by their beginnings."""

Snapshot = Mapping[str, Any]


def snapshot(device: torch.device) -> Snapshot:
    """The values of everything watched."""
    values = {name: read() for name, (read, _) in WATCHED.items()}
    if device.type == "cuda":
        values["the CUDA random state"] = torch.cuda.get_rng_state(device).numpy().tobytes()
    return values


def changed(before: Snapshot, after: Snapshot) -> list[str]:
    """What differs, in words: 'the default dtype (torch.float32 -> torch.float64)'."""
    return [f"{name}{_from_to(before[name], after[name])}" for name in before if before[name] != after[name]]


def restore(before: Snapshot) -> None:
    """Puts back what a kernel changed, so that the next one is not blamed for it."""
    for name, (read, put) in WATCHED.items():
        if read() != before[name]:
            put(before[name])


def _from_to(old: Any, new: Any) -> str:
    if isinstance(old, dict):
        names = sorted(key for key in old.keys() | new.keys() if old.get(key) != new.get(key))
        return f" ({', '.join(names[:5])})"
    return "" if isinstance(old, (bytes, tuple)) else f" ({old} -> {new})"


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(OWN_VARIABLES)}


def _put_environment(before: dict[str, str]) -> None:
    for name in _environment():
        os.environ.pop(name)
    os.environ.update(before)


def _flushes_denormals() -> bool:
    """Compilers set this for the whole thread when they link with -ffast-math; torch has no way to ask."""
    return float(torch.tensor(1e-310, dtype=torch.float64) * 1.0) == 0.0


def _put_random_state(state: bytes) -> None:
    torch.set_rng_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))


WATCHED: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "the default dtype": (torch.get_default_dtype, torch.set_default_dtype),
    "the gradient mode": (torch.is_grad_enabled, torch.set_grad_enabled),
    "deterministic algorithms": (torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms),
    "the float32 matmul precision": (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    "TF32 in cuDNN": (lambda: torch.backends.cudnn.allow_tf32, lambda on: setattr(torch.backends.cudnn, "allow_tf32", on)),
    "autocast": (lambda: torch.is_autocast_enabled("cpu"), lambda on: torch.set_autocast_enabled("cpu", on)),
    "torch's number of threads": (torch.get_num_threads, torch.set_num_threads),
    "flushing of denormals": (_flushes_denormals, torch.set_flush_denormal),
    "torch's random state": (lambda: torch.get_rng_state().numpy().tobytes(), _put_random_state),
    "Python's random state": (random.getstate, random.setstate),
    "the environment": (_environment, _put_environment),
    "the working directory": (os.getcwd, os.chdir),
}

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
