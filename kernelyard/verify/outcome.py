"""What a check says: one case, and all cases of a kernel."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from kernelyard.errors import BuildFailed, KernelyardError, Unsupported
from kernelyard.registry.spec import Status, require


class Fault(Exception):
    """A kernel broke its contract; raised inside the checks and turned into a `CaseResult`."""

    def __init__(self, reason: str, status: Status = Status.WRONG) -> None:
        self.reason, self.status = reason, status
        super().__init__(reason)


class OutOfMemory(Unsupported):
    """The checker's own work found no memory: the case can't be checked here."""


class CheckerFailed(KernelyardError):
    """The reference, the input maker, a tolerance or the oracle itself failed: nothing is known about the kernel."""


@contextlib.contextmanager
def checking(what: str) -> Iterator[None]:
    """Around work that is the checker's own: what it raises is no fault of the kernel, and never a pass.

    Raises CheckerFailed; OutOfMemory where memory ran out.
    """
    try:
        yield
    except (Fault, CheckerFailed, Unsupported, BuildFailed):
        raise
    except MemoryError as error:
        raise OutOfMemory(f"can't be checked here: memory ran out in {what}: {error}") from error
    except Exception as error:
        if type(error).__name__ == "OutOfMemoryError" or "not enough memory" in str(error):
            raise OutOfMemory(f"can't be checked here: memory ran out in {what}: {str(error)[:300]}") from error
        asked = f"the checker failed, not the kernel: {what} raised {type(error).__name__}: {str(error)[:800]}"
        raise CheckerFailed(asked, do="Nothing is known about the kernel until that is mended.") from error


@dataclass(frozen=True, slots=True)
class CaseResult:
    """One workload with one kind of values. `reason` names the fault; errors are the largest met, where both were finite.

    `norm` is ||got - want|| / ||want||. `eager_ulp` and `eager_norm` are those of plain torch (the op's fallback) on the
    same inputs, for typical values; None where it was not run.
    """

    case: str
    status: Status
    reason: str = ""
    max_abs: float = 0.0
    max_rel: float = 0.0
    max_ulp: float = 0.0
    norm: float = 0.0
    eager_ulp: float | None = None
    eager_norm: float | None = None

    def __post_init__(self) -> None:
        require(self.status is Status.OK or bool(self.reason), f"case '{self.case}' is {self.status} without a reason")

    @property
    def ok(self) -> bool:
        """Whether nothing was found."""
        return self.status is Status.OK


@dataclass(frozen=True, slots=True)
class CheckReport:
    """A kernel over a matrix. `unsupported` counts the points that its declared support leaves out, which are no failures.

    `no_room` counts those among them that this machine lacks the memory for; all have their reasons in `refusals`.
    `max_ulp`, `norm`, `eager_ulp` and `eager_norm` are the largest of the cases: see `CaseResult`.
    `reason` says why nothing could be checked at all; then `cases` is 0 and the kernel is not `ok`.
    """

    op: str
    kernel: str
    device: str
    cases: int
    failures: tuple[CaseResult, ...]
    unsupported: int
    max_ulp: float = 0.0
    seconds: float = 0.0
    reason: str = ""
    refusals: dict[str, int] = field(default_factory=dict)
    norm: float = 0.0
    eager_ulp: float | None = None
    eager_norm: float | None = None
    no_room: int = 0

    @property
    def ok(self) -> bool:
        """Whether at least one case was checked and none failed."""
        return self.cases > 0 and not self.failures

    def as_dict(self) -> dict[str, Any]:
        """For JSON: the fields, and `ok`."""
        return {**asdict(self), "failures": [asdict(failure) for failure in self.failures], "ok": self.ok}


def report_from(values: dict[str, Any]) -> CheckReport:
    """The report that `as_dict` wrote."""
    fields = {name: value for name, value in values.items() if name != "ok"}
    failures = tuple(CaseResult(**{**failure, "status": Status(failure["status"])}) for failure in values["failures"])
    return CheckReport(**{**fields, "failures": failures})
