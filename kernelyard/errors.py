"""Every error that kernelyard raises on purpose.

Each says what was asked, what exists and what to do, in that order; the command line prints
the message alone and exits with ``exit_code`` (2: the request can't be meant, 1: the answer is no).
"""

from __future__ import annotations

import re
from collections.abc import Iterable


class KernelyardError(Exception):
    """The root of the family. `exists` and `do` are joined to the message when given."""

    exit_code = 1

    def __init__(self, asked: str, *, exists: str = "", do: str = "") -> None:
        self.asked, self.exists, self.do = asked, exists, do
        super().__init__(" ".join(part for part in (asked, exists, do) if part))


class UsageError(KernelyardError):
    """The request can't be meant: an unknown name, a shape that doesn't parse, a bad value."""

    exit_code = 2


class UnknownName(UsageError):
    """No op, kernel, backend, preset or matrix is called this."""

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        names = ", ".join(sorted(known)) or "none"
        super().__init__(f"no {kind} named '{name}'.", exists=f"There are: {names}.")


class Unsupported(KernelyardError):
    """This machine, or this kernel, can't do what was asked; the message has the reason."""


class InvalidInput(KernelyardError, ValueError):
    """The arguments of an op break its contract."""

    exit_code = 2


class BuildFailed(KernelyardError):
    """A kernel did not compile; `log` is the tail of what the compiler said."""

    def __init__(self, asked: str, *, log: str = "", do: str = "") -> None:
        self.log = log
        super().__init__(asked, exists=log.strip()[-1500:], do=do)


class PluginFailed(KernelyardError):
    """An entry point raised, hung, asked for another API or declared nonsense."""


class StoreFailed(KernelyardError):
    """The store can't be opened, read or written."""


class MeasurementFailed(KernelyardError):
    """A time could not be taken honestly: too coarse a clock, a busy device, a NaN."""


class Interrupted(KernelyardError):
    """The user stopped the run; what had finished is kept."""

    exit_code = 130


def masked(url: str) -> str:
    """A URL as messages, notes and the store may hold it: stars where its password was, also for what is no URL for want of a character."""
    return re.sub(r"(?i)(password=)[^&]*", r"\1***", re.sub(r"(://[^:@/]*):.*@", r"\1:***@", url))
