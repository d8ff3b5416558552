"""What a tuned workload leaves in the store: the choice with its evidence, and every time of finals."""

from __future__ import annotations

from collections.abc import Mapping

from kernelyard.errors import MeasurementFailed
from kernelyard.registry import choices
from kernelyard.registry.spec import Choice, Status
from kernelyard.store.database import Store
from kernelyard.store.records import Measurement
from kernelyard.tuner.answers import Asked, answers, covers_more, stored
from kernelyard.tuner.evidence import evidence, searches
from kernelyard.tuner.finals import Outcome
from kernelyard.tuner.plan import Plan, plan
from kernelyard.tuner.report import WorkloadReport
from kernelyard.tuner.search import Searched

MODE = "device"


def keep(
    asked: Asked, store: Store, tuned: Plan, found: Mapping[str, Searched], outcome: Outcome, *, interrupted: bool = False
) -> WorkloadReport:
    """Save the times and the choice.

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
    store.save_measurements(_measurements(asked, tuned, outcome))
    storing = not failed and outcome.winner is not None and not (_stands(asked, tuned) if interrupted else _narrower(asked, tuned))
    if storing:
        store.save_choice(choice, tuned.workload, proof)
    return WorkloadReport(tuned.workload, choice, proof, stored=storing, all_failed=failed)


def _choice(asked: Asked, tuned: Plan, outcome: Outcome, failure: str) -> Choice:
    op, winner = asked.op, outcome.winner
    if winner is None and not any(kernel.name == op.fallback for kernel in tuned.references):
        raise MeasurementFailed(f"{op.name} on {tuned.workload.label()}: {outcome.reason}.", do="Nothing was chosen.")
    kernel = asked.registry.kernel(op.name, winner.name if winner is not None else op.fallback)
    return Choice(
        op=op.name,
        workload_key=tuned.workload.key(),
        device_key=asked.device.key(),
        mode=MODE,
        kernel=kernel.name,
        config=dict(winner.item.config) if winner is not None else kernel.space.default_for(tuned.workload),
        contract_hash=op.contract_hash(),
        source_hash=kernel.source_hash(),
        space_hash=kernel.space.hash(),
        versions=dict(asked.registry.builder(kernel.backend).versions()),
        run_id=asked.run_id,
        reason="; ".join(filter(None, (failure, outcome.reason, _noise(outcome)))),
    )


def _noise(outcome: Outcome) -> str:
    timing = outcome.timing(outcome.winner) if outcome.winner is not None else None
    return f"noisy ({timing.noisy}): tune again with --force when the machine is quiet" if timing is not None and timing.noisy else ""


def _stands(asked: Asked, tuned: Plan) -> bool:
    """Whether a choice that was not interrupted is stored and still holds."""
    found = stored(asked.op, tuned, asked.device)
    if found is None or found.choice is None or found.evidence.get("interrupted"):
        return False
    return bool(choices.holds(found.choice, asked.op, asked.registry))


def _narrower(asked: Asked, tuned: Plan) -> bool:
    """Whether a choice among more kernels is stored and holds: `--kernel` must not replace it by the best of fewer."""
    found = stored(asked.op, tuned, asked.device)
    if asked.kernels is None or found is None:
        return False
    everything = plan(asked.registry, asked.op, tuned.workload, trials=1)
    return covers_more(found, tuned) and bool(answers(found, asked.op, everything, asked.registry, None))


def _measurements(asked: Asked, tuned: Plan, outcome: Outcome) -> list[Measurement]:
    op, workload = asked.op, tuned.workload
    return [
        Measurement(
            run_id=asked.run_id,
            op=op.name,
            workload_key=workload.key(),
            workload=workload.label(),
            kernel=finalist.name,
            config=finalist.item.config,
            device_key=asked.device.key(),
            timing=times.timings[finalist.item.id],
            stage="finals",
            protocol=times.protocol,
            matrix_hash=asked.matrix_identity[1],
            source_hash=asked.registry.kernel(op.name, finalist.name).source_hash(),
        )
        for times in (outcome.device, outcome.call)
        if times is not None
        for finalist in outcome.finalists
        if finalist.item.id in times.timings and finalist.item.id not in times.impossible
    ]
