"""What a check says: one case, and all cases of a kernel."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from kernelyard.registry.spec import Status, require


class Fault(Exception):
    """A kernel broke its contract; raised inside the checks and turned into a `CaseResult`."""

    def __init__(self, reason: str, status: Status = Status.WRONG) -> None:
        self.reason, self.status = reason, status
        super().__init__(reason)


@dataclass(frozen=True, slots=True)
class CaseResult:
    """One workload with one kind of values. `reason` names the fault; errors are the largest met, where both were finite."""

    case: str
    status: Status
    reason: str = ""
    max_abs: float = 0.0
    max_rel: float = 0.0
    max_ulp: float = 0.0

    def __post_init__(self) -> None:
        require(self.status is Status.OK or bool(self.reason), f"case '{self.case}' is {self.status} without a reason")

    @property
    def ok(self) -> bool:
        """Whether nothing was found."""
        return self.status is Status.OK


@dataclass(frozen=True, slots=True)
class CheckReport:
    """A kernel over a matrix. `unsupported` counts the points that its declared support leaves out, which are no failures.

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
