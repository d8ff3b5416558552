"""What a tuned workload leaves in the store: the choice with its evidence, and every time of finals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kernelyard.errors import MeasurementFailed
from kernelyard.registry import choices
from kernelyard.registry.kernel import Kernel
from kernelyard.registry.spec import Choice, Config, Status, Timing, Workload
from kernelyard.store.database import Store
from kernelyard.store.records import Entry, Measurement
from kernelyard.tuner.answers import Asked, answers, covers_more
from kernelyard.tuner.bench import Item
from kernelyard.tuner.evidence import evidence, searches
from kernelyard.tuner.finals import Outcome
from kernelyard.tuner.plan import Plan, plan
from kernelyard.tuner.report import WorkloadReport
from kernelyard.tuner.search import Searched

MODE = "device"


@dataclass(frozen=True)
class Kept:
    """What is to be stored of a workload. The choice is not, where every config failed or it must not replace the one that stands."""

    workload: Workload
    choice: Choice
    evidence: Mapping[str, Any]
    measurements: tuple[Measurement, ...]
    storing: bool
    all_failed: bool


def keep(store: Store, kept: Kept) -> WorkloadReport:
    """Save the times and the choice."""
    store.save_measurements(kept.measurements)
    if kept.storing:
        store.save_choice(kept.choice, kept.workload, kept.evidence)
    return WorkloadReport(kept.workload, kept.choice, kept.evidence, stored=kept.storing, all_failed=kept.all_failed)


def decided(
    asked: Asked, tuned: Plan, found: Mapping[str, Searched], outcome: Outcome, standing: Entry | None, *, interrupted: bool = False
) -> Kept:
    """The choice with its evidence, made where its device is. `standing`: the entry that is stored now.

    No choice is stored where every config failed (that may be mended), where no time is good for one, or where a
    valid choice stands already that was made among more kernels, or, if this search was `interrupted`, any valid one.
    """
    finished = {name: one.finished for name, one in found.items()}
    ended = [one.result.status for trials in finished.values() for one in trials]
    failed = bool(ended) and Status.OK not in ended
    why = next((one.result.reason for trials in finished.values() for one in trials), "") if failed else ""
    how = {"searched": searches(tuned, found, asked.sampler), "matrix_hash": asked.matrix_identity[1], "interrupted": interrupted}
    proof = {**evidence(asked.op, tuned, finished, outcome), **how}
    choice = _choice(asked, tuned, outcome, f"every config of every other kernel failed, the first so: {why}" if failed else "")
    remains = _stands(asked, standing) if interrupted else _narrower(asked, tuned, standing)
    storing = not failed and outcome.winner is not None and not remains
    return Kept(tuned.workload, choice, proof, tuple(_measurements(asked, outcome)), storing, failed)


def _choice(asked: Asked, tuned: Plan, outcome: Outcome, failure: str) -> Choice:
    op, winner = asked.op, outcome.winner
    if winner is None and not any(kernel.name == op.fallback for kernel in tuned.references):
        raise MeasurementFailed(f"{op.name} on {tuned.workload.label()}: {outcome.reason}.", do="Nothing was chosen.")
    kernel = asked.registry.kernel(op.name, winner.name if winner is not None else op.fallback)
    config = winner.item.config if winner is not None else kernel.space.default_for(tuned.workload)
    return choice_of(asked, kernel, config, tuned.workload, "; ".join(filter(None, (failure, outcome.reason, _noise(outcome)))))


def choice_of(asked: Asked, kernel: Kernel, config: Config, workload: Workload, reason: str = "") -> Choice:
    """A kernel and a config for a workload, tied to all that they were measured with."""
    return Choice(
        op=asked.op.name,
        workload_key=workload.key(),
        device_key=asked.device.key(),
        mode=MODE,
        kernel=kernel.name,
        config=dict(config),
        contract_hash=asked.op.contract_hash(),
        source_hash=kernel.source_hash(),
        space_hash=kernel.space.hash(),
        versions=dict(asked.registry.builder(kernel.backend).versions()),
        run_id=asked.run_id,
        reason=reason,
    )


def _noise(outcome: Outcome) -> str:
    timing = outcome.timing(outcome.winner) if outcome.winner is not None else None
    return f"noisy ({timing.noisy}): tune again with --force when the machine is quiet" if timing is not None and timing.noisy else ""


def _stands(asked: Asked, found: Entry | None) -> bool:
    """Whether a choice that was not interrupted is stored and still holds."""
    if found is None or found.choice is None or found.evidence.get("interrupted"):
        return False
    return bool(choices.holds(found.choice, asked.op, asked.registry))


def _narrower(asked: Asked, tuned: Plan, found: Entry | None) -> bool:
    """Whether a choice among more kernels is stored and holds: `--kernel` must not replace it by the best of fewer."""
    if asked.kernels is None or found is None:
        return False
    everything = plan(asked.registry, asked.op, tuned.workload, trials=1)
    return covers_more(found, tuned) and bool(answers(found, asked.op, everything, asked.registry, None))


def _measurements(asked: Asked, outcome: Outcome) -> list[Measurement]:
    return [
        measurement(asked, finalist.item, times.timings[finalist.item.id], "finals", times.protocol)
        for times in (outcome.device, outcome.call)
        if times is not None
        for finalist in outcome.finalists
        if finalist.item.id in times.timings and finalist.item.id not in times.impossible
    ]


def measurement(asked: Asked, item: Item, timing: Timing, stage: str, protocol: str) -> Measurement:
    """The time of one item, as it is stored."""
    return Measurement(
        run_id=asked.run_id,
        op=asked.op.name,
        workload_key=item.workload.key(),
        workload=item.workload.label(),
        kernel=item.kernel,
        config=item.config,
        device_key=asked.device.key(),
        timing=timing,
        stage=stage,
        protocol=protocol,
        matrix_hash=asked.matrix_identity[1],
        source_hash=asked.registry.kernel(asked.op.name, item.kernel).source_hash(),
    )
