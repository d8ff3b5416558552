"""Shapes from a model that runs: every workload it asks for through dispatch, how often, as a matrix file to tune.

While a capture is open, what is bound counts its calls; all signatures are bound anew when it opens and when it ends. So nothing is
counted, tested or slower outside of one. Inside, a call costs a Python frame more, and C++ no longer makes it.
"""

from __future__ import annotations

import contextlib
import os
import threading
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from kernelyard.errors import StoreFailed, UsageError
from kernelyard.registry import pins, registry, selections
from kernelyard.registry.backend import Executable
from kernelyard.registry.dispatch import Selection
from kernelyard.registry.matrix import Matrix, Point, point_payload
from kernelyard.registry.matrix_file import matrix_text
from kernelyard.registry.points import point_of
from kernelyard.registry.selections import Tally
from kernelyard.registry.spec import Workload

_lock = threading.Lock()
_open: Recorder | None = None


class Recorder:
    """What an open capture has met: a tally for each bound function, by workload."""

    def __init__(self, path: Path) -> None:
        self.path, self._lock = path, threading.Lock()
        self._tallies: dict[Workload, list[Tally]] = {}

    def counting(self, selection: Selection, found: Executable) -> Executable:
        """The same function, which counts its calls."""
        tally = Tally()
        with self._lock:
            self._tallies.setdefault(selection.workload, []).append(tally)
        selections.count(selection, tally)
        into = None if found.into is None else _counted(found.into, tally)
        return replace(found, call=_counted(found.call, tally), into=into)

    def counts(self) -> dict[Workload, int]:
        """Calls of each workload; those that were bound and never ran are left out."""
        with self._lock:
            found = {workload: sum(tally.value() for tally in tallies) for workload, tallies in self._tallies.items()}
        return {workload: count for workload, count in found.items() if count}


@contextlib.contextmanager
def capture(to: str | os.PathLike[str]) -> Iterator[Path]:
    """Record what a model asks for inside, and write it as a matrix file: `with kernelyard.capture("my-model"):`.

    `to` is a name, for `<name>.json` in the current folder, or a path. Then `kernelyard tune --matrix my-model.json`.

    All threads of the process are recorded; a second capture meanwhile is refused (UsageError), as is a file that exists: its
    hash stands beside results, so it is frozen. An exception inside goes on, and what was recorded until then is written: a server is ended
    by Ctrl-C. Where nothing was recorded no file is written, and UsageError says so. Not seen are the replays of a CUDA graph
    (capture its recording), other processes, and calls under `torch.compile` while it traces.
    """
    path = _path(to)
    recorder = _begin(path)
    try:
        yield path
    except BaseException as error:
        _end()
        if recorder.counts():
            _write(recorder)
            error.add_note(f"kernelyard: what was captured until then is in {path}.")
        raise
    _end()
    _write(recorder)


def counting(selection: Selection, found: Executable) -> Executable:
    """What a signature is bound to: the kernel's own function, or one that counts while a capture is open."""
    recorder = _open
    return found if recorder is None else recorder.counting(selection, found)


def _counted(run: Callable[..., Any], tally: Tally) -> Callable[..., Any]:
    step = tally.step

    def counted(*args: Any) -> Any:
        step()
        return run(*args)

    return counted


def _path(to: str | os.PathLike[str]) -> Path:
    path = Path(to).expanduser().absolute()
    return path if path.suffix == ".json" else path.with_name(f"{path.name}.json")


def _begin(path: Path) -> Recorder:
    """Refuse before the model has run what would be refused after."""
    global _open
    if path.exists():
        raise UsageError(f"{path} exists, and a captured matrix is frozen.", do="Capture to another name, or remove the file.")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise StoreFailed(f"{path} can't be written: {path.parent} is no folder that can.", do="Capture to a path that can be.")
    with _lock:
        if _open is not None:
            raise UsageError(f"a capture to {_open.path} is open in this process.", do="End it first: one sees the calls of all threads.")
        _open = recorder = Recorder(path)
    pins.forget()  # after the recorder is there: whatever is bound from here on counts
    return recorder


def _end() -> None:
    global _open
    _open = None
    pins.forget()


def _write(recorder: Recorder) -> None:
    matrices = _matrices(recorder)
    if not matrices:
        raise UsageError(
            f"the capture to {recorder.path} recorded nothing.", exists="No op of kernelyard.ops was called inside, by any thread.",
            do="Let the model call kernelyard.ops, and run it inside.",
        )  # fmt: skip
    try:
        with recorder.path.open("x") as file:
            file.write(matrix_text(recorder.path.stem, matrices))
    except FileExistsError as error:
        spare = recorder.path.with_name(f"{recorder.path.stem}.{os.getpid()}.json")
        spare.write_text(matrix_text(recorder.path.stem, matrices))
        kept = f"What was captured is in {spare}."
        raise UsageError(f"{recorder.path} was written by another process meanwhile.", exists=kept) from error
    except OSError as error:
        told = f"{recorder.path} can't be written: {error.strerror}."
        raise StoreFailed(told, do="Free some space, or capture to another path.") from error


def _matrices(recorder: Recorder) -> list[Matrix]:
    """A matrix for each op, its points in an order of their own: a model that runs again, longer or in threads, gives the same hash."""
    by_op: dict[str, dict[Point, int]] = {}
    for workload, count in recorder.counts().items():
        point = point_of(registry.current().op(workload.op), workload)
        if point is None:
            told = f"kernelyard: {workload.key()} ({count} calls) is the workload of no matrix point, and is left out of {recorder.path}."
            warnings.warn(told, RuntimeWarning, stacklevel=5)
            continue
        points = by_op.setdefault(workload.op, {})
        points[point] = points.get(point, 0) + count
    found = {op: sorted(points.items(), key=lambda pair: repr(point_payload(pair[0]))) for op, points in sorted(by_op.items())}
    name = recorder.path.stem
    return [Matrix(name, op, tuple(point for point, _ in pairs), tuple(count for _, count in pairs)) for op, pairs in found.items()]
