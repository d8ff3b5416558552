"""How far a long command is, on stderr: on a terminal one line that is written over, elsewhere a line now and then.

No escape sequence is written, so there is no colour that NO_COLOR could forbid: a line is written over with spaces, and is cut where the
terminal ends, as one that wraps can't be written over.
"""

from __future__ import annotations

import os
import sys
import time

TERMINAL_S, FILE_S = 0.5, 30.0
"""Seconds between two lines: a terminal's is written over, a log keeps each."""


class Live:
    """`passing` lines are of a moment and shown at most every so many seconds; `lasting` ones stay."""

    def __init__(self, terminal_s: float, file_s: float, first_s: float = 0.0) -> None:
        self.terminal = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self._every_s = terminal_s if self.terminal else file_s
        self._next, self._shown = time.monotonic() + first_s, 0

    @property
    def due(self) -> bool:
        """Whether a passing line would be shown now."""
        return time.monotonic() >= self._next

    def passing(self, text: str) -> None:
        """What is so now: written over by the next line."""
        if not self.due:
            return
        self._next = time.monotonic() + self._every_s
        if self.terminal:
            self._over(text[: columns() - 1])
        else:
            print(text, file=sys.stderr, flush=True)

    def lasting(self, text: str) -> None:
        """What is to be read later too."""
        self.close()
        print(text, file=sys.stderr, flush=True)

    def close(self) -> None:
        """Leaves the terminal's line empty."""
        if self._shown:
            print(f"\r{' ' * self._shown}\r", end="", file=sys.stderr, flush=True)
            self._shown = 0

    def _over(self, text: str) -> None:
        padding = " " * max(self._shown - len(text), 0)
        self._shown = len(text)
        print(f"\r{text}{padding}", end="", file=sys.stderr, flush=True)


class Watching:
    """`seen(done, total)` as it comes; `close` leaves the terminal's line empty."""

    def __init__(self, name: str) -> None:
        self.name, self.started = name, time.monotonic()
        self._live = Live(TERMINAL_S, FILE_S, first_s=TERMINAL_S if sys.stderr.isatty() else FILE_S)

    def seen(self, done: int, total: int) -> None:
        """Says so, unless it has just said something."""
        if self._live.due:
            self._live.passing(line(self.name, done, total, time.monotonic() - self.started))

    def close(self) -> None:
        """After the last."""
        self._live.close()


def columns() -> int:
    """The width of the terminal that stderr is; COLUMNS overrides it, 80 where it does not tell."""
    if (asked := os.environ.get("COLUMNS", "")).isdigit() and int(asked) > 1:
        return int(asked)
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns or 80
    except (OSError, ValueError):
        return 80


def line(name: str, done: int, total: int, elapsed_s: float) -> str:
    """'triton.row: 120 of 404 cases, about 90 s left'."""
    left_s = elapsed_s / max(done, 1) * (total - done)
    return f"{name}: {done} of {total} cases, about {duration(left_s)} left"


def duration(seconds: float) -> str:
    """'90 s', '17 min', '3.5 h'."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
