"""A failure made small: the smallest sizes and the plainest values that a kernel still fails on, found with Hypothesis.

What may count as the same failure is `tries`' business.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from kernelyard.errors import Unsupported
from kernelyard.registry.machine import installed
from kernelyard.registry.op import Point
from kernelyard.verify.isolation import Worker
from kernelyard.verify.plain import KINDS, OWN
from kernelyard.verify.tries import Subject, Tries, key_of

TRIES = 3
"""Runs of the failure as it was found, before it is called not reproducible: a race does not show each time."""
BUDGET_S = 120.0
"""Seconds for all tries; what was found by then is the answer."""


@dataclass(frozen=True)
class Shrunk:
    """The smallest failing subject found, what the check says of it, and how many cases were run."""

    subject: Subject
    reason: str
    tries: int


def shrink(subject: Subject, worker: Worker, budget_s: float = BUDGET_S) -> Shrunk | None:
    """The failure made small; None where it does not show in `TRIES` runs. Raises Unsupported without hypothesis."""
    if not installed("hypothesis"):
        raise Unsupported("shrinking a failure needs hypothesis, which is not installed.", do="Install kernelyard[repro].")
    tries = Tries(subject, worker, time.monotonic() + budget_s)
    reasons = (tries.run(subject) for _ in range(TRIES))
    reason = next(filter(None, reasons), "")
    if not reason:
        return None
    tries.reason = reason
    smallest = _search(subject, tries)
    if tries.soiled:
        worker.close()
    return Shrunk(smallest, tries.known.get(key_of(smallest), reason), tries.count)


def _search(subject: Subject, tries: Tries) -> Subject:
    """Hypothesis lets indices into the options shrink, sizes before the rest, from the failure as it was found."""
    import hypothesis
    from hypothesis import HealthCheck, Phase, Verbosity, strategies
    from hypothesis.database import InMemoryExampleDatabase, choices_to_bytes

    options = _options(subject)
    database = InMemoryExampleDatabase()  # where Hypothesis looks for an example to begin with
    database.save(b"failure", choices_to_bytes([len(choice) - 1 for choice in options]))
    settings = hypothesis.settings(
        database=database, deadline=None, max_examples=100, suppress_health_check=list(HealthCheck),
        verbosity=Verbosity.quiet, phases=(Phase.reuse, Phase.generate, Phase.shrink),
    )  # fmt: skip
    indices = strategies.tuples(*(strategies.integers(0, len(choice) - 1) for choice in options))

    def fails(picked: tuple[int, ...]) -> bool:
        return tries.fails(_picked(subject, options, picked))

    try:
        found = hypothesis.find(indices, fails, settings=settings, random=Random(0), database_key=b"failure")
    except hypothesis.errors.NoSuchExample:  # it does not show each time, and in no try since
        return subject
    return _picked(subject, options, found)


def _options(subject: Subject) -> list[Sequence[Any]]:
    """For each size, then for dtype, layout, statics, edge, seed and each tensor's values: what it may be, simplest first.

    The last is what it was.
    """
    op, where = subject.op, subject.where
    point = where.point
    dtype = "float32" if "float32" in op.dtypes else point.dtype
    kinds = (*KINDS, OWN) if where.edge != "memory" else (OWN,)
    return [
        *(range(1, size + 1) if size else (0,) for size in point.dims),
        _once(dtype, point.dtype), _once("contiguous", point.layout), _once((), point.statics),
        _once("random", where.edge) if where.edge != "memory" else (where.edge,), _once(0, where.seed),
        *(kinds for argument in op.arguments if argument.tensor),
    ]  # fmt: skip


def _once(simple: Any, original: Any) -> tuple[Any, ...]:
    return (simple,) if simple == original else (simple, original)


def _picked(subject: Subject, options: Sequence[Sequence[Any]], indices: Sequence[int]) -> Subject:
    picked = [choice[index] for choice, index in zip(options, indices, strict=True)]
    n = len(subject.where.point.dims)
    dtype, layout, statics, edge, seed = picked[n : n + 5]
    tensors = (argument.name for argument in subject.op.arguments if argument.tensor)
    values = {name: kind for name, kind in zip(tensors, picked[n + 5 :], strict=True) if kind != OWN}
    dims, before = tuple(picked[:n]), subject.where.point
    specs = before.tensors if (dims, dtype, layout, statics) == (before.dims, before.dtype, before.layout, before.statics) else ()
    where = replace(subject.where, point=Point(dims, dtype, layout, statics, specs), edge=edge, seed=seed)
    return replace(subject, where=where, values=values)
