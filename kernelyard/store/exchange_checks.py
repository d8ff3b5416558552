"""Values of an exchanged file, checked one by one: the same that `schemas/choices-1.json` says, without a library for it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kernelyard.registry.spec import DeclarationError

MOST_TEXT = 20_000
MOST_TIME_US = 1e12
"""Eleven days."""
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
NAMES = ("id", "op", "workload_key", "device_key", "kernel", "dtype")
"""Texts that may not be empty."""
ANSWERING = ("call_time_us", "eager_us", "compile_us", "speedup_vs_eager", "speedup_vs_compile", "baselines")
"""What `tune` prints of a choice that answers it, which one with `searched` may."""


def keys(row: Mapping[str, Any], what: str, names: Sequence[str]) -> None:
    """All of these keys and no other."""
    if missing := [name for name in names if name not in row]:
        raise DeclarationError(f"{what} lacks {', '.join(missing)}")
    if unknown := sorted(set(row) - set(names)):
        raise DeclarationError(f"{what} has {', '.join(map(repr, unknown[:5]))}, which the schema does not know")


def text(value: object, where: str) -> None:
    """Text that a terminal can be given, not endless; a name is not empty."""
    if not isinstance(value, str) or len(value) > MOST_TEXT or CONTROL.search(value) or (where in NAMES and not value):
        kind = "a name" if where in NAMES else "text"
        raise DeclarationError(f"{where} is {shown(value)}, not {kind} of at most {MOST_TEXT} characters without control characters")


def scalar(value: object, where: str) -> None:
    """A value of a config."""
    if isinstance(value, str):
        text(value, where)
    elif not isinstance(value, int | float):
        raise DeclarationError(f"{where} is {shown(value)}, not a number, text, true or false")


def sizes(value: object, where: str) -> None:
    """A shape."""
    if not isinstance(value, list) or not all(type(size) is int and size >= 0 for size in value):
        raise DeclarationError(f"{where} is {shown(value)}, not a list of sizes")


def mapping(value: object, where: str, check: Callable[[object, str], None]) -> None:
    """An object whose values pass a check."""
    for key, part in _object(value, where).items():
        text(key, f"a key of {where}")
        check(part, f"{where}.{key}")


def evidence(value: object) -> None:
    """What is read of evidence has the type that its readers expect; what nobody reads may be anything."""
    row = _object(value, "evidence")
    _interval(row.get("device_time_us"), "evidence.device_time_us")
    for name, check in _READ.items():
        if row.get(name) is not None:
            check(row[name], f"evidence.{name}")
    if "searched" in row and (missing := [name for name in ANSWERING if name not in row]):
        raise DeclarationError(f"evidence lacks {', '.join(missing)}")


def _object(value: object, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise DeclarationError(f"{where} is {shown(value)}, not an object")
    return value


def _number(value: object, where: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= MOST_TIME_US:
        raise DeclarationError(f"{where} is {shown(value)}, not a number up to {MOST_TIME_US:.0e}")


def _interval(value: object, where: str) -> None:
    row = _object(value, where)
    for name in ("median", "low", "high"):
        if name == "median" or name in row:
            _number(row.get(name), f"{where}.{name}")
    if row["median"] <= 0:
        raise DeclarationError(f"{where}.median is {shown(row['median'])}, not a time > 0")


def _both(value: object, where: str) -> None:
    row = _object(value, where)
    for name in ("device_us", "call_us"):
        if row.get(name, 0) is not None:
            _number(row.get(name), f"{where}.{name}")


def _searched(value: object, where: str) -> None:
    row = _object(value, where)
    if type(row.get("budget", 0)) is not int:
        raise DeclarationError(f"{where}.budget is {shown(row['budget'])}, not a count")
    for name in ("stopped", "digest", "sampler"):
        text(row.get(name, ""), f"{where}.{name}")


def _finals(value: object, where: str) -> None:
    if not isinstance(value, list):
        raise DeclarationError(f"{where} is {shown(value)}, not a list")
    for one in value:
        row = _object(one, f"one of {where}")
        text(row.get("kernel"), f"a kernel of {where}")
        if row.get("device_time_us") is not None:
            _interval(row["device_time_us"], f"a time of {where}")


def _by_name(check: Callable[[object, str], None]) -> Callable[[object, str], None]:
    return lambda value, where: mapping(value, where, check)


_READ: Mapping[str, Callable[[object, str], None]] = {
    "call_time_us": _interval,
    **dict.fromkeys(("eager_us", "compile_us", "speedup_vs_eager", "speedup_vs_compile", "percent_of_ceiling"), _number),
    "baselines": _by_name(_both),
    "finals": _finals,
    "skipped": _by_name(text),
    "searched": _by_name(_searched),
    "imported": _by_name(text),
    "protocol": text,
    "torch": text,
}


def shown(value: object) -> str:
    """A value in an error: short, and on one line."""
    said = repr(value)
    return said if len(said) <= 60 else said[:57] + "..."
