"""Builds ahead of their use, in processes of their own side by side: what they leave in the caches is found by the process that times.

Compilers keep what they made, by content: native builds in kernelyard's home, Triton and torch.compile in caches of their own. A build
that fails here, or crashes, costs nothing: it fails again, and is told, where it is wanted. Nothing is timed meanwhile.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable, Sequence

from kernelyard.tuner.bench import Bench, Item
from kernelyard.tuner.limits import Limits
from kernelyard.verify.isolation import Worker

MOST_PROCESSES = 12
"""Each imports torch, and on a GPU has a context of half a gigabyte there."""


def processes(items: int, cores: int | None = None) -> int:
    """How many are worth their start: fewer than two are not, as the process that times can build by itself."""
    count = min((cores or _cores()) - 1, items // 2, MOST_PROCESSES)
    return count if count > 1 else 0


def build(items: Sequence[Item], limits: Limits, count: int, say: Callable[[str], None] = lambda text: None) -> None:
    """Build every item once, in `count` processes. An item that may build in its first call is called."""
    waiting: queue.SimpleQueue[Item] = queue.SimpleQueue()
    for item in sorted(items, key=lambda item: not item.patient):  # the slow ones first
        waiting.put(item)
    if count:
        say(f"building {len(items)} kernels ahead in {count} processes")
    threads = [threading.Thread(target=_work, args=(waiting, limits)) for _ in range(count)]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            thread.join()
    finally:  # interrupted: let the others end with the item they are at
        while not waiting.empty():
            waiting.get()


def _cores() -> int:
    """Those that this process may run on, where the system tells."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _work(waiting: queue.SimpleQueue[Item], limits: Limits) -> None:
    with Worker() as worker:
        runner = Bench(worker, limits)
        while True:
            try:
                item = waiting.get_nowait()
            except queue.Empty:
                return
            if item.patient:
                runner.prepare(item)
            else:
                runner.build(item)
            runner.keep([])
