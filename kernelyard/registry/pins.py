"""Pins: what the caller insists on, by `use` or KERNELYARD_USE="rmsnorm=cpp.onepass", and what was chosen and built under each.

Pins live in a context variable: another thread or task has its own, and an exception restores the outer ones.
"""

from __future__ import annotations

import contextlib
import os
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from kernelyard.errors import UnknownName, UsageError
from kernelyard.registry import registry
from kernelyard.registry.backend import Executable

Entries = tuple[Callable[..., Any], ...]
ENVIRONMENT = "KERNELYARD_USE"


@dataclass(slots=True)
class Served:
    """What serves an op under some pins: by signature, and those met last by functions that test before they run, for calls and for calls
    with `out=` (see `recall`)."""

    bound: dict[Any, Executable] = field(default_factory=dict)
    calls: Entries = ()
    writes: Entries = ()
    tests_made: int = 0


@dataclass(frozen=True)
class Pins:
    """Kernels pinned by op name, and what was chosen and built under them, by op name."""

    kernels: tuple[tuple[str, str], ...] = ()
    deterministic: bool = False
    served: defaultdict[str, Served] = field(default_factory=lambda: defaultdict(Served), compare=False, repr=False)


_known: dict[tuple[tuple[tuple[str, str], ...], bool], Pins] = {}
_active: ContextVar[Pins | None] = ContextVar("kernelyard_pins", default=None)
_environment: Pins | None = None


def active() -> Pins:
    """The pins in force here: those of the innermost `use`, else the environment's."""
    return _active.get() or _environment or _from_environment()


@contextlib.contextmanager
def use(*, deterministic: bool | None = None, **kernels: str) -> Iterator[None]:
    """Pin kernels by op name for calls inside: `with kernelyard.use(rmsnorm="torch.eager"):`.

    A pinned kernel that can't run raises Unsupported with the reason. `deterministic=True` leaves only kernels that have
    shown on this kind of device that they give the same bits from run to run: by `kernelyard check`, or by the trial of
    a stored choice on its workload. Inner pins add to outer ones. Raises UnknownName on entry.
    """
    for op, kernel in kernels.items():
        registry.current().kernel(op, kernel)
    outer = active()
    merged = tuple(sorted({**dict(outer.kernels), **kernels}.items()))
    token = _active.set(_pins(merged, outer.deterministic if deterministic is None else deterministic))
    try:
        yield
    finally:
        _active.reset(token)


def forget() -> None:
    """Drop everything that was chosen: pins, choices or plugins have changed."""
    global _environment
    _environment = None
    for pins in list(_known.values()):
        pins.served.clear()


def _pins(kernels: tuple[tuple[str, str], ...], deterministic: bool) -> Pins:
    """One Pins object for equal pins, so that entering `use` again finds its table warm."""
    return _known.setdefault((kernels, deterministic), Pins(kernels, deterministic))


def _from_environment() -> Pins:
    global _environment
    pairs = {}
    for word in filter(None, (w.strip() for w in os.environ.get(ENVIRONMENT, "").split(","))):
        op, equals, kernel = (part.strip() for part in word.partition("="))
        if not equals:
            raise UsageError(f"{ENVIRONMENT} has '{word}'.", do="Write op=kernel, such as rmsnorm=torch.eager.")
        try:
            registry.current().kernel(op, kernel)
        except UnknownName as error:
            raise UsageError(f"{ENVIRONMENT} has '{word}': {error.asked}", exists=error.exists) from error
        pairs[op] = kernel
    _environment = _pins(tuple(sorted(pairs.items())), False)
    return _environment
