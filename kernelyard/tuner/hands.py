"""Who does a session's work on a device: the process beside it (`Here`), or those of a cluster (`fleet.Fleet`)."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from kernelyard.errors import StoreFailed
from kernelyard.registry.home import home
from kernelyard.registry.spec import Status
from kernelyard.store.records import Entry
from kernelyard.tuner import finals, keeping
from kernelyard.tuner.answers import Asked, from_store, stored
from kernelyard.tuner.bench import Bench, Item, Result
from kernelyard.tuner.plan import Plan
from kernelyard.tuner.report import WorkloadReport
from kernelyard.tuner.search import Outcomes, Searched, one_by_one

LEAST_FREE_BYTES = 16 << 20
"""A native build takes up to 2 MiB while it runs, and is copied once."""


class Hands(Protocol):
    """What a session asks for."""

    @property
    def outcomes(self) -> Outcomes:
        """How trials are run: one after another, or several at a time."""

    @property
    def spent(self) -> Mapping[str, float]:
        """Seconds of this run by build, check and time; of several devices their sum."""

    def answer(self, plan: Plan) -> WorkloadReport | None:
        """The report of a workload whose stored choice answers what is asked."""

    def trial(self, item: Item) -> Result:
        """Build, check and time."""

    def decide(self, plan: Plan, found: Mapping[str, Searched], *, interrupted: bool = False) -> keeping.Kept:
        """Finals, and what is to be stored of them; `interrupted`: the search was."""


@dataclass(frozen=True)
class Here:
    """This machine's device, through one worker."""

    asked: Asked
    bench: Bench
    outcomes: Outcomes = one_by_one

    @property
    def spent(self) -> Mapping[str, float]:
        """Of the one worker."""
        return self.bench.spent

    def answer(self, plan: Plan) -> WorkloadReport | None:
        """From this home's store."""
        return from_store(self.asked, plan)

    def trial(self, item: Item) -> Result:
        """One trial; raises StoreFailed where the disk is full."""
        result = self.bench.trial(item, self.asked.limits.trial)
        if result.status is Status.BUILD_FAILED:
            _refuse_a_full_disk()
        return result

    def decide(self, plan: Plan, found: Mapping[str, Searched], *, interrupted: bool = False) -> keeping.Kept:
        """With the entry that stands in this home."""
        return self.decided(plan, found, stored(self.asked.op, plan, self.asked.device), interrupted=interrupted)

    def decided(self, plan: Plan, found: Mapping[str, Searched], standing: Entry | None, *, interrupted: bool = False) -> keeping.Kept:
        """Finals, and what is to be stored where `standing` is stored now."""
        finalists = finals.lineup(plan, self.asked.op, {name: one.finished for name, one in found.items()})
        self.bench.keep([finalist.item for finalist in finalists])
        outcome = finals.play(self.bench, self.asked.op, finalists, self.asked.limits)
        self.bench.keep([])
        return keeping.decided(self.asked, plan, found, outcome, standing, interrupted=interrupted)


def _refuse_a_full_disk() -> None:
    """A build that failed for want of space says nothing about the config: not recorded, tried again once there is some."""
    free = shutil.disk_usage(home()).free
    if free < LEAST_FREE_BYTES:
        raise StoreFailed(f"{home()} is full: {free >> 10} KiB are left.", do="Free some space; the same command goes on from here.")
