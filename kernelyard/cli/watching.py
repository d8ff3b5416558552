"""How far a check is, on stderr: on a terminal one line that is written over, elsewhere a line now and then."""

from __future__ import annotations

import sys
import time

TERMINAL_S, FILE_S = 0.5, 30.0
"""Seconds between two lines: a terminal's is written over, a log keeps each."""


class Watching:
    """`seen(done, total)` as it comes; `close` leaves the terminal's line empty."""

    def __init__(self, name: str) -> None:
        self.name, self.started = name, time.monotonic()
        self._terminal = sys.stderr.isatty()
        self._next = self.started + (TERMINAL_S if self._terminal else FILE_S)
        self._width = 0

    def seen(self, done: int, total: int) -> None:
        """Says so, unless it has just said something."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + (TERMINAL_S if self._terminal else FILE_S)
        text = line(self.name, done, total, now - self.started)
        padding = " " * max(self._width - len(text), 0)
        self._width = len(text)
        print(f"\r{text}{padding}" if self._terminal else text, end="" if self._terminal else "\n", file=sys.stderr, flush=True)

    def close(self) -> None:
        """After the last."""
        if self._terminal and self._width:
            print(f"\r{' ' * self._width}\r", end="", file=sys.stderr, flush=True)


def line(name: str, done: int, total: int, elapsed_s: float) -> str:
    """'triton.row: 120 of 404 cases, about 90 s left'."""
    left_s = elapsed_s / max(done, 1) * (total - done)
    left = f"{left_s:.0f} s" if left_s < 120 else f"{left_s / 60:.0f} min"
    return f"{name}: {done} of {total} cases, about {left} left"
