"""One timing at a time on a device, and proof of it: a file lock per device UUID with a log of its holders.

The lock is the operating system's (flock): it goes with its process, however that ends, so none is ever stale. It is
re-entrant inside one thread; another thread, and a child forked off while it is held, wait like any stranger. So a process that
holds it must not wait for a child that measures.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from kernelyard.errors import StoreFailed
from kernelyard.measure.state import DeviceState, guard, state, usable_cores
from kernelyard.registry.home import home
from kernelyard.registry.spec import DeviceIdentity

__all__ = ["DeviceState", "Holder", "guard", "holders", "lock", "state", "usable_cores"]


_locks: dict[Path, FileLock] = {}
_parents: list[FileLock] = []
"""Locks inherited by a fork: kept from the garbage collector, which would unlock the parent's file."""


def _forked() -> None:
    _parents.extend(_locks.values())
    _locks.clear()


os.register_at_fork(after_in_child=_forked)


@dataclass(frozen=True, slots=True)
class Holder:
    """A process that held a device; times are seconds since the epoch, `end` is None if it never said that it was done."""

    pid: int
    start: float
    end: float | None


@contextmanager
def lock(device: DeviceIdentity, waiting: Callable[[str], None] | None = None) -> Iterator[None]:
    """Hold the device alone, among all processes of this home. Waits as long as it takes, after one message to `waiting`."""
    path = lock_path(device)
    flock = _locks.setdefault(path, FileLock(path))
    _acquire(flock, device, waiting)
    outermost = flock.lock_counter == 1
    start = time.time()
    if outermost:
        _log(path, {"pid": os.getpid(), "start": start})
    try:
        yield
    finally:
        if outermost:
            _log(path, {"pid": os.getpid(), "start": start, "end": time.time()})
        flock.release()


def lock_path(device: DeviceIdentity) -> Path:
    """Where the device's lock lies; its log is beside it."""
    folder = home() / "locks"
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise StoreFailed(f"{folder} can't be made: {error.strerror}.", do="Set KERNELYARD_HOME to a folder you can write.") from error
    return folder / (re.sub(r"[^\w.-]", "_", device.uuid) + ".lock")


def holders(device: DeviceIdentity) -> list[Holder]:
    """Who held the device, in order of starting, as the log tells; a line cut short by a kill is left out."""
    ends: dict[tuple[int, float], float | None] = {}
    for line in _log_path(lock_path(device)).read_text().splitlines():
        try:
            entry = json.loads(line)
            ends[entry["pid"], entry["start"]] = entry.get("end")
        except (ValueError, KeyError, TypeError):
            continue
    return [Holder(pid, start, end) for (pid, start), end in sorted(ends.items(), key=lambda item: item[0][1])]


def _acquire(flock: FileLock, device: DeviceIdentity, waiting: Callable[[str], None] | None) -> None:
    try:
        flock.acquire(timeout=0)
    except Timeout:
        if waiting is not None:
            waiting(f"waiting for {device.name}: {_holder_text(device)} is timing on it")
        flock.acquire()


def _holder_text(device: DeviceIdentity) -> str:
    try:
        last = holders(device)[-1]
    except (OSError, IndexError):
        return "another process"
    return f"process {last.pid}" if last.end is None else "another process"


def _log_path(path: Path) -> Path:
    return path.with_suffix(".log")


def _log(path: Path, entry: dict[str, float]) -> None:
    """One write of one line, appended: whole even if two processes write."""
    with _log_path(path).open("a") as log:
        log.write(json.dumps(entry) + "\n")
