"""Who watches a tuning run: a line on stderr for people, one JSON object a line for programs, or nobody.

With --json each event is a line of stderr, and the last one, the result, is the line of stdout: either can be read alone, and `2>&1` gives
the whole stream in order. Every line has `event` and `version`; a version only ever gets more fields and more kinds.

    waiting cached trying trial finals stopping done    as `kernelyard.tuner.progress.Progress` has them, with all of its fields
    note      {message}: what a person would be told
    error     {message, exit_code}: the command was refused or broke, and there is no result
    result    the report: `schema`, `op`, `workloads`, ... or, where several ops or a cluster were asked for, `runs`;
              `interrupted` where Ctrl-C ended it, and `failed` has what could not be measured at all

A line of stderr that does not begin with `{` is a warning of another library, or the message that the command ends with.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Protocol

from kernelyard.cli.output import config_text, microseconds
from kernelyard.cli.watching import Live, duration
from kernelyard.errors import Interrupted, KernelyardError

if TYPE_CHECKING:
    from kernelyard.tuner.bucket import Bucket
    from kernelyard.tuner.progress import Progress
    from kernelyard.tuner.report import TuneReport

VERSION = 1
"""Of the events."""

TERMINAL_S, FILE_S = 0.1, 5.0
"""Seconds between two lines about trials: one of a terminal is written over, a log keeps each."""


class Watcher(Protocol):
    """Is told of every event of a run, and of what else there is to say."""

    def __call__(self, event: Progress) -> None:
        """One event of the tuner."""

    def note(self, text: str) -> None:
        """Words for a person."""

    def close(self) -> None:
        """The run is over, or another begins."""


class Quiet:
    """--quiet: the result is all there is."""

    def __call__(self, event: Progress) -> None:
        """Not told."""

    def note(self, text: str) -> None:
        """Not told."""

    def close(self) -> None:
        """Nothing is shown."""


class Lines:
    """Progress for people."""

    def __init__(self) -> None:
        self._live = Live(TERMINAL_S, FILE_S)

    def __call__(self, event: Progress) -> None:
        """Trials pass, the rest stays. Where lines can't be written over, what has only begun is not told."""
        if event.stage in ("trying", "trial"):
            if self._live.terminal or event.stage == "trial":
                self._live.passing(line(event))
        else:
            self._live.lasting(line(event))

    def note(self, text: str) -> None:
        """One line."""
        self._live.lasting(text)

    def close(self) -> None:
        """Clears what is left of a line that was being written over."""
        self._live.close()


class Events:
    """--json: every event as it comes."""

    def __call__(self, event: Progress) -> None:
        """All of its fields, whether they tell something in this stage or not."""
        fields = asdict(event)
        put(fields.pop("stage"), fields)

    def note(self, text: str) -> None:
        """A line like any other."""
        put("note", {"message": text})

    def close(self) -> None:
        """Nothing is left over."""


def watcher(*, quiet: bool, as_json: bool) -> Watcher:
    """Who is to be told."""
    if quiet:
        return Quiet()
    return Events() if as_json else Lines()


@contextmanager
def told(*, as_json: bool) -> Iterator[None]:
    """With --json a refusal is an event as well as a message."""
    try:
        yield
    except KernelyardError as error:
        if as_json and not isinstance(error, Interrupted):
            put("error", {"message": str(error), "exit_code": error.exit_code})
        raise


def result(reports: Sequence[TuneReport], failed: Sequence[str], buckets: Sequence[Bucket], *, several: bool, interrupted: bool) -> None:
    """The last event: the report of the one op that was asked for, or the runs of `several`, or of none that came to a result."""
    made = {one.rule.op: {"bucket": one.to_json()} for one in buckets}
    found = [report.to_json() | made.get(report.op, {}) for report in reports]
    one = found[0] if found and not several else {"runs": found}
    put("result", {"schema": 1, **one, "interrupted": interrupted, "failed": list(failed)})


def put(event: str, fields: dict[str, Any]) -> None:
    """One event: the result to stdout, the others to stderr."""
    text = json.dumps({"event": event, "version": VERSION, **fields}, default=str)
    print(text, file=sys.stdout if event == "result" else sys.stderr, flush=True)


def line(event: Progress) -> str:
    """What a person wants first stands first, as a terminal may cut the rest."""
    where = f"[{event.done}/{event.total}] {event.op} {event.workload}"
    best = f"best {microseconds(event.best_us)} {event.best_kernel}" if event.best_us is not None else ""
    if event.stage in ("trying", "trial"):
        left = f"ETA {duration(event.eta_s)}" if event.eta_s is not None else ""
        counts = " ".join(f"{count} {status}" for status, count in event.counts.items())
        now = f"{'now' if event.stage == 'trying' else event.status} {event.kernel} {config_text(event.config)}"
        return "; ".join(filter(None, (where, left, best, counts, _spent(event), now)))
    words = {
        "waiting": event.message,
        "cached": "already tuned",
        "finals": f"finals: the best against plain and compiled torch; {best}".rstrip("; "),
        "stopping": f"stopping: the best so far meets plain torch and is stored; {best}; Ctrl-C again ends at once",
        "done": f"{event.kernel} {config_text(event.config)}",
    }
    return f"{where}: {words[event.stage]}"


def _spent(event: Progress) -> str:
    """Builds and timing apart: what a run waits for decides what would make it faster."""
    names = {"build": "building", "check": "checking", "time": "timing"}
    return " ".join(f"{names[step]} {duration(seconds)}" for step, seconds in event.spent.items())
