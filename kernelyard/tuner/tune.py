"""Tuning one op over its workloads: what is stored and holds is the answer; the rest is measured, one workload after another."""

from __future__ import annotations

from collections.abc import Sequence

from kernelyard.errors import StoreFailed, UsageError
from kernelyard.registry import registry as registries
from kernelyard.registry.machine import identity
from kernelyard.registry.op import Matrix, Op
from kernelyard.registry.spec import Workload, digest
from kernelyard.store.choices import listed
from kernelyard.store.records import Entry
from kernelyard.tuner import samplers
from kernelyard.tuner.answers import Asked, from_store
from kernelyard.tuner.ending import Ending
from kernelyard.tuner.limits import Limits
from kernelyard.tuner.plan import plan
from kernelyard.tuner.progress import Listener, Tracker, nobody
from kernelyard.tuner.report import Stopped, TuneReport, WorkloadReport


def tune(
    op: Op,
    workloads: Sequence[Workload],
    device_type: str,
    *,
    kernels: Sequence[str] | None = None,
    trials: int | None = None,
    force: bool = False,
    storage: str | None = None,
    matrix: Matrix | None = None,
    progress: Listener = nobody,
    command: str = "",
    limits: Limits | None = None,
    sampler: str = samplers.DEFAULT,
    minutes: float | None = None,
    patience: int | None = None,
) -> TuneReport:
    """Tune every workload; what is already tuned, and still holds, is answered from the store.

    kernels    only these, with the references; UnknownName or Unsupported where one can't be
    trials     for each kernel and workload, at most; a space with so few valid configs is searched whole.
               By default a space of up to 48 is, and a larger one gets 32 trials
    force      searches anew, whatever is stored
    storage    a database URL for the trials, instead of the store's own file
    sampler    who proposes configs where a space is not searched whole: see `kernelyard.tuner.samplers`
    minutes    of search for each kernel and workload, at most
    patience   trials without a gain beyond noise that end the search of a kernel on a workload
    Raises Stopped on Ctrl-C, with every finished trial and workload kept. The best so far of the one that was being tuned meets plain
    torch once more and is stored, where no valid choice is; a Ctrl-C meanwhile ends that too.
    """
    asked = Asked(op, registries.current(), identity(device_type), kernels, trials, force, storage, matrix, command, limits or Limits(),
                  sampler, Ending(minutes, patience))  # fmt: skip
    return tuned(asked, workloads, progress)


def check(asked: Asked) -> None:
    """Raises UsageError or UnknownName for what can't be asked."""
    if asked.trials is not None and asked.trials < 1:
        raise UsageError(f"{asked.trials} trials were asked for.", do="Ask for at least 1.")
    samplers.check(asked.sampler)
    for name in asked.kernels or ():
        asked.registry.kernel(asked.op.name, name)


def tuned(asked: Asked, workloads: Sequence[Workload], progress: Listener = nobody) -> TuneReport:
    """As `tune`, which says what the parts of `asked` mean."""
    check(asked)
    op = asked.op
    near = [one for one in _stored(op) if one.device_key == asked.device.key()] if not asked.force else []
    plans = [plan(asked.registry, op, workload, asked.trials, asked.kernels, near) for workload in workloads]
    reports: list[WorkloadReport | None] = [None if asked.force else from_store(asked, one) for one in plans]
    missing = [i for i, report in enumerate(reports) if report is None]
    tracker = Tracker(op.name, sum(plans[i].trials for i in missing), len(missing), progress)
    for i in sorted(set(range(len(plans))) - set(missing)):
        tracker.begin(plans[i].workload)
        tracker.say("cached")
    if missing:
        from kernelyard.tuner.session import opened

        try:
            with opened(asked) as session:
                tracker.watch(session.hands.spent)
                for i in missing:
                    tracker.begin(plans[i].workload)
                    reports[i] = session.workload(plans[i], tracker)
                    if session.stopped:
                        raise KeyboardInterrupt
        except KeyboardInterrupt:
            raise stopped(asked, reports, tracker) from None
    return reported(asked, reports)


def _stored(op: Op) -> list[Entry]:
    """The op's stored choices. A file that can't be read is opened to write, which sets it aside where it is damaged."""
    try:
        return listed(op.name)
    except StoreFailed:
        from kernelyard.store.database import open_store

        open_store().close()
        return listed(op.name)


def stopped(asked: Asked, reports: Sequence[WorkloadReport | None], tracker: Tracker) -> Stopped:
    """What Ctrl-C leaves: the finished workloads, and the best so far of the one that was being tuned."""
    said = ""
    for best in (report for report in reports if report is not None and report.evidence.get("interrupted")):
        config = " ".join(f"{name}={value}" for name, value in best.choice.config.items())
        kept = "is stored" if best.stored else "is not stored: a valid choice stands"
        said = f" The best so far on {best.workload.label()}, {f'{best.choice.kernel} {config}'.strip()}, {kept}."
    again = "The same command goes on from there."
    return Stopped(f"tuning {asked.op.name} was stopped.", reported(asked, reports), exists=f"{tracker.so_far()}{said}", do=again)


def reported(asked: Asked, all_of: Sequence[WorkloadReport | None]) -> TuneReport:
    """The run id is this run's; the stored one's where nothing was measured and all came of one run."""
    reports = [report for report in all_of if report is not None]
    runs = {report.choice.run_id for report in reports}
    run_id = runs.pop() if len(runs) == 1 and all(report.from_cache for report in reports) else asked.run_id
    name, content = asked.matrix_identity
    content = content or digest([report.workload.key() for report in reports])
    return TuneReport(asked.op.name, run_id, asked.device, name, content, tuple(reports))
