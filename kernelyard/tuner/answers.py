"""Answering from the store: a choice that still holds and was searched for as hard as is asked now. No torch, no Optuna."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from secrets import token_hex
from typing import Any

from kernelyard.measure.measured import PROTOCOL
from kernelyard.registry import choices
from kernelyard.registry.op import Matrix, Op
from kernelyard.registry.registry import Registry
from kernelyard.registry.spec import Answer, DeviceIdentity, no
from kernelyard.store.choices import entry
from kernelyard.store.records import Entry
from kernelyard.tuner import samplers
from kernelyard.tuner.ending import Ending
from kernelyard.tuner.limits import Limits
from kernelyard.tuner.plan import Plan, is_reference
from kernelyard.tuner.report import WorkloadReport


def new_run_id() -> str:
    """When a run began, and what tells it from others of that second."""
    return f"{datetime.now(UTC).strftime('%Y%m%d-%H%M%S')}-{token_hex(3)}"


@dataclass(frozen=True)
class Asked:
    """What one call of `tune` was asked, and where it runs."""

    op: Op
    registry: Registry
    device: DeviceIdentity
    kernels: Sequence[str] | None
    trials: int | None
    force: bool
    storage: str | None
    matrix: Matrix | None
    command: str
    limits: Limits
    sampler: str = samplers.DEFAULT
    ending: Ending = field(default_factory=Ending)
    run_id: str = field(default_factory=new_run_id)

    @property
    def matrix_identity(self) -> tuple[str, str]:
        """Name and hash of the matrix; empty where single workloads were given."""
        return (self.matrix.name, self.matrix.hash) if self.matrix is not None else ("", "")


def from_store(asked: Asked, one: Plan) -> WorkloadReport | None:
    """The report of a workload whose stored choice answers what is asked."""
    found = stored(asked.op, one, asked.device)
    if found is None or found.choice is None or not answers(found, asked.op, one, asked.registry, asked.kernels):
        return None
    return WorkloadReport(one.workload, found.choice, found.evidence, from_cache=True)


def stored(op: Op, plan: Plan, device: DeviceIdentity) -> Entry | None:
    """The readable entry of this workload, valid or not."""
    found = entry(op.name, plan.workload.key(), device.key())
    return found if found is not None and found.choice is not None else None


def answers(found: Entry, op: Op, plan: Plan, registry: Registry, names: Sequence[str] | None) -> Answer:
    """Whether a stored entry answers this plan; else what is missing, in a sentence."""
    choice = found.choice
    if choice is None:
        return no(f"it can't be read: {found.problem}")
    holds = choices.holds(choice, op, registry)
    if not holds:
        return holds
    if found.evidence.get("protocol") != PROTOCOL:
        return no("it was timed by another version of the protocol")
    if found.evidence.get("torch") != torch_version():
        return no("its references were timed with another torch")
    if found.evidence.get("interrupted"):
        return no("the run that made it was interrupted")
    kernel = registry.kernel(op.name, choice.kernel)
    if names is not None and choice.kernel not in names and not is_reference(kernel, op):
        return no(f"it chose {choice.kernel}, which was not asked for")
    return _searched_as_hard(found.evidence.get("searched"), plan)


def _searched_as_hard(searched: object, plan: Plan) -> Answer:
    table: Mapping[str, Any] = searched if isinstance(searched, dict) else {}
    for search in plan.searches:
        then = table.get(search.kernel.name)
        if not isinstance(then, dict) or then.get("digest") != search.digest:
            return no(f"{search.kernel.name} is new or has changed since")
        if not then.get("whole") and (search.whole is not None or int(then.get("budget", 0)) < search.budget):
            return no(f"{search.kernel.name} was searched with {then.get('budget')} trials, {search.budget} are asked for")
    return Answer(True)


def covers_more(found: Entry, plan: Plan) -> bool:
    """Whether the stored choice compared kernels that this plan leaves out: a narrower search must not replace it."""
    searched = found.evidence.get("searched")
    return isinstance(searched, dict) and bool(set(searched) - {search.kernel.name for search in plan.searches})


def torch_version() -> str:
    """The installed torch, from metadata: it made the references' times."""
    return metadata.version("torch")
