"""What a tuning run says in the end, as `tune --json` prints it. Everything comes from the choice and its evidence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kernelyard.errors import Interrupted
from kernelyard.registry.spec import Choice, DeviceIdentity, Status, Workload

COUNTED = (Status.OK, Status.WRONG, Status.BUILD_FAILED, Status.CRASHED, Status.TIMED_OUT, Status.PRUNED)
_PLAIN = (
    "device_time_us", "call_time_us", "eager_us", "compile_us", "speedup_vs_eager", "speedup_vs_compile", "percent_of_ceiling",
    "ceiling_note", "trials", "baselines", "finals", "cold_build_s", "clock", "protocol", "cache", "noisy", "searched", "skipped",
    "interrupted",
)  # fmt: skip


@dataclass(frozen=True)
class WorkloadReport:
    """One workload: the choice, why, and the evidence (see `kernelyard.tuner.finals.evidence` for its keys)."""

    workload: Workload
    choice: Choice
    evidence: Mapping[str, Any]
    from_cache: bool = False
    stored: bool = True
    all_failed: bool = False

    def to_json(self) -> dict[str, Any]:
        """The stable names of a workload, and more."""
        workload = self.workload
        return {
            "workload": {"shapes": workload.shapes, "dtype": workload.dtype, "label": workload.label(), "key": workload.key()},
            "choice": {"kernel": self.choice.kernel, "config": dict(self.choice.config)},
            **{name: self.evidence.get(name) for name in _PLAIN},
            "reason": self.choice.reason,
            "run_id": self.choice.run_id,
            "from_cache": self.from_cache,
            "stored": self.stored,
            "all_failed": self.all_failed,
        }


@dataclass(frozen=True)
class TuneReport:
    """One op over a matrix. `all_failed` asks for exit code 1: no config of any kernel was right on some workload."""

    op: str
    run_id: str
    device: DeviceIdentity
    matrix_name: str
    matrix_hash: str
    workloads: tuple[WorkloadReport, ...]

    @property
    def all_failed(self) -> bool:
        """Whether on some workload there were configs to try and none was right."""
        return any(report.all_failed for report in self.workloads)

    @property
    def from_cache(self) -> bool:
        """Whether nothing had to be measured."""
        return all(report.from_cache for report in self.workloads)

    def to_json(self) -> dict[str, Any]:
        """What `tune --json` prints."""
        return {
            "schema": 1,
            "op": self.op,
            "run_id": self.run_id,
            "device": self.device.key(),
            "matrix": {"name": self.matrix_name, "hash": self.matrix_hash},
            "workloads": [report.to_json() for report in self.workloads],
        }


class Stopped(Interrupted):
    """A run that Ctrl-C ended. `report` has the workloads that were finished, and the one that was being tuned if something was right."""

    def __init__(self, asked: str, report: TuneReport, *, exists: str, do: str) -> None:
        super().__init__(asked, exists=exists, do=do)
        self.report = report
