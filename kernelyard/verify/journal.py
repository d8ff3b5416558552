"""A check as it goes: a file in which the child says which case it is at, and the parent reads how far it is.

So a case can be run again (`Where`), also one that took its process along, and a check that takes minutes can show it.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kernelyard.registry.backend import Executable
from kernelyard.registry.kernel import Kernel
from kernelyard.registry.matrix import Point, point_from, point_payload
from kernelyard.registry.op import Op
from kernelyard.registry.spec import Config, Workload
from kernelyard.verify import edges
from kernelyard.verify.check import Build
from kernelyard.verify.outcome import CaseResult

LOOK_S = 0.2
"""How often the parent looks for news."""

Seen = Callable[[int, int], None]


@dataclass(frozen=True)
class Where:
    """All that it takes to run a case again, beside op, kernel and device. `edge` may be 'memory': calls that keep memory."""

    point: Point
    edge: str
    config: Config
    seed: int = 0

    def as_list(self) -> list[Any]:
        """As JSON."""
        return [point_payload(self.point), self.edge, dict(self.config), self.seed]

    @staticmethod
    def of(value: list[Any]) -> Where:
        """What `as_list` wrote."""
        return Where(point_from(value[0]), value[1], value[2], value[3])


@dataclass
class Writer:
    """The child's side, around one `check_kernel`: its `build` and its `progress`. `failures` are where the failed cases were."""

    op: Op
    points: dict[Workload, Point]
    path: Path | None
    failures: list[Where] = field(default_factory=list)
    at: Where | None = None
    _built: dict[Workload, int] = field(default_factory=dict)
    _all_done: bool = False

    def building(self, build: Build) -> Build:
        """`build`, told of first: a kernel may crash there, and what it is built for is the case at hand."""

        def noted(kernel: Kernel, workload: Workload, config: Config) -> Executable:
            self.at = Where(self.points[workload], self._edge(workload), dict(config))
            self._write({"at": self.at.as_list()})
            return build(kernel, workload, config)

        return noted

    def progress(self, done: int, total: int, result: CaseResult) -> None:
        """After each case."""
        self._all_done = done == total
        if not result.ok and self.at is not None:
            self.failures.append(self.at)
        self._write({"done": done, "total": total})

    def _edge(self, workload: Workload) -> str:
        """A workload is built once a case: with typical values, then with each kind of edge values; after all of them for memory."""
        if self._all_done:
            return "memory"
        count = self._built[workload] = self._built.get(workload, -1) + 1
        return dict(enumerate(("random", *dict.fromkeys((*edges.ALWAYS, *self.op.edges))))).get(count, "random")

    def _write(self, event: dict[str, Any]) -> None:
        if self.path is not None:
            with self.path.open("a") as file:  # closed each time: what is written survives a crash
                file.write(json.dumps(event) + "\n")


class Reader:
    """The parent's side: follows the file while the child works."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def last(self) -> Where | None:
        """The case that was begun last."""
        events = [event["at"] for event in self._events() if "at" in event]
        return Where.of(events[-1]) if events else None

    def done(self) -> tuple[int, int] | None:
        """Cases done, and of how many."""
        events = [(event["done"], event["total"]) for event in self._events() if "done" in event]
        return events[-1] if events else None

    def _events(self) -> Iterator[dict[str, Any]]:
        for line in self.path.read_text().splitlines():
            with contextlib.suppress(ValueError):  # the last line may be half written
                yield json.loads(line)


@contextlib.contextmanager
def journal(seen: Seen | None) -> Iterator[Reader]:
    """A file for one check, removed afterwards; `seen(done, total)` is called whenever cases were done."""
    descriptor, name = tempfile.mkstemp(prefix="kernelyard-check-", suffix=".jsonl")
    os.close(descriptor)
    reader, ended = Reader(Path(name)), threading.Event()
    watcher = threading.Thread(target=_watch, args=(reader, seen, ended), daemon=True)
    if seen is not None:
        watcher.start()
    try:
        yield reader
    finally:
        ended.set()
        if seen is not None:
            watcher.join()
        reader.path.unlink(missing_ok=True)


def _watch(reader: Reader, seen: Seen | None, ended: threading.Event) -> None:
    before = None
    while not ended.wait(LOOK_S):
        now = reader.done()
        if seen is not None and now is not None and now != before:
            seen(*now)
        before = now
