"""One tuner at a time on a workload: a file lock in the home, released by the death of its holder."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from kernelyard.errors import StoreFailed
from kernelyard.registry.home import home
from kernelyard.store.files import WRITABLE, make_folder


def lock_path(purpose: str, digest: str) -> Path:
    """Where a lock of this purpose lies; its folder is made."""
    folder = home() / "locks"
    make_folder(folder)
    return folder / f"{purpose}-{digest}.lock"


@contextmanager
def alone(path: Path, waiting: Callable[[], None]) -> Iterator[None]:
    """Hold the lock; where another process has it, call `waiting` once and wait as long as it takes."""
    import filelock

    lock = filelock.FileLock(path, poll_interval=0.2)
    try:
        try:
            lock.acquire(timeout=0)
        except filelock.Timeout:
            waiting()
            lock.acquire()
    except OSError as error:
        raise StoreFailed(f"{path} can't be locked: {error.strerror}.", do=WRITABLE) from error
    try:
        yield
    finally:
        lock.release()
