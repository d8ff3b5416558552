"""The measured part of a run: a worker, the store and the trials' storage, opened only when something must be measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from optuna.storages import RDBStorage

from kernelyard.errors import masked
from kernelyard.measure.measured import PROTOCOL
from kernelyard.registry.spec import Config, Status, digest
from kernelyard.store.database import Store, open_store
from kernelyard.store.records import Run
from kernelyard.store.results import commit, versions
from kernelyard.tuner import keeping, samplers, studies
from kernelyard.tuner import search as searching
from kernelyard.tuner.answers import Asked
from kernelyard.tuner.bench import Bench, Finished, Item, Result
from kernelyard.tuner.hands import Hands, Here
from kernelyard.tuner.locks import alone, lock_path
from kernelyard.tuner.plan import KernelPlan, Plan
from kernelyard.tuner.progress import Tracker
from kernelyard.tuner.report import WorkloadReport
from kernelyard.tuner.samplers import Sampling
from kernelyard.verify.isolation import Worker

H = TypeVar("H", bound=Hands)


@dataclass
class Session(Generic[H]):
    """One run's measuring: search every kernel, play finals, store the choice."""

    asked: Asked
    store: Store
    trials: RDBStorage
    hands: H
    sampling: Sampling
    stopped: bool = False
    """Whether Ctrl-C came while a workload was being tuned, and its report has the best so far."""

    def workload(self, plan: Plan, tracker: Tracker) -> WorkloadReport:
        """One workload, alone among processes of this home; answered from the store if another tuned it meanwhile."""
        asked = self.asked
        path = lock_path("tune", digest([asked.op.name, plan.workload.key(), asked.device.key(), keeping.MODE]))
        with alone(path, lambda: tracker.say("waiting", message="another process is tuning this workload; its choice will be used")):
            report = None if asked.force else self.hands.answer(plan)
            if report is not None:
                tracker.answered(plan.trials)
                return report
            return self._tuned(plan, tracker)

    def _tuned(self, plan: Plan, tracker: Tracker) -> WorkloadReport:
        found = {search.kernel.name: searching.Searched([], "interrupted") for search in plan.searches}
        try:
            for search in plan.searches:
                found[search.kernel.name] = self._searched(search, plan, tracker, found[search.kernel.name].finished)
            tracker.finals()
            return self._chosen(plan, found, tracker)
        except KeyboardInterrupt:
            if not any(one.result.status is Status.OK for each in found.values() for one in each.finished):
                raise
            self.stopped = True
            tracker.finals("stopping")
            return self._chosen(quick(plan), found, tracker)

    def _chosen(self, plan: Plan, found: Mapping[str, searching.Searched], tracker: Tracker) -> WorkloadReport:
        report = keeping.keep(self.store, self.hands.decide(plan, found, interrupted=self.stopped))
        tracker.chosen(report.choice.kernel, report.choice.config)
        return report

    def _searched(self, search: KernelPlan, plan: Plan, tracker: Tracker, seen: list[Finished]) -> searching.Searched:
        """`seen` gets each trial as it ends, so that an interruption finds them."""
        name = search.kernel.name

        def run(config: Config) -> Result:
            tracker.say("trying", name, config)
            return self.hands.trial(Item(name, config, plan.workload))

        def ended(config: Config, result: Result, resumed: bool) -> None:
            seen.append(Finished(config, result))
            tracker.ended(name, config, result, resumed=resumed)

        with studies.failures(masked(self.asked.storage or str(self.store.path))):
            study = studies.open_study(self.trials, search.kernel, self.key(search, plan), self.sampling.make(0), anew=self.asked.force)
            stop, outcomes = self.asked.ending.started(), self.hands.outcomes
            found = searching.search(study, search, plan.workload, run, ended, self.sampling, stop, outcomes=outcomes)
        tracker.unneeded(search.budget - sum(one.tried for one in found.finished))
        return found

    def key(self, search: KernelPlan, plan: Plan) -> dict[str, Any]:
        """All that a trial's time depends on, and how its config is written: Optuna wants one way in a study."""
        op, kernel = self.asked.op, search.kernel
        coding = {"coding": "places"} if self.sampling.places else {}
        return {
            "op": op.name, "label": plan.workload.label(), "workload": plan.workload.key(), "kernel": kernel.name,
            "device": self.asked.device.key(), "mode": keeping.MODE, "protocol": PROTOCOL, "contract": op.contract_hash(),
            "source": kernel.source_hash(), "space": kernel.space.hash(), "versions": dict(search.versions), **coding,
        }  # fmt: skip


def quick(plan: Plan) -> Plan:
    """The plan without what takes minutes in finals: an interrupted run meets plain torch alone."""
    return replace(plan, references=tuple(kernel for kernel in plan.references if kernel.backend != "compile"))


@contextmanager
def opened(asked: Asked) -> Iterator[Session[Here]]:
    """A session on this machine; its worker is gone when it ends."""
    memory = asked.limits.memory(asked.device.type)
    with Worker(memory=memory) as worker, kept_in(asked, Here(asked, Bench(worker, asked.limits))) as session:
        yield session


@contextmanager
def kept_in(asked: Asked, hands: H) -> Iterator[Session[H]]:
    """A session with this home's store, and the trials there or at --storage."""
    sampling = samplers.sampling(asked.sampler)
    with open_store() as store:
        trials = studies.open_storage(asked.storage or f"sqlite:///{store.path}")
        store.save_run(_run(asked))
        yield Session(asked, store, trials, hands, sampling)


def _run(asked: Asked) -> Run:
    title = f"tune {asked.op.name} on {asked.device.name}"
    return Run(asked.run_id, "tune", title, asked.command, asked.device, *asked.matrix_identity, versions(), commit())
