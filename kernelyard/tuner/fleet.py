"""The devices of one model on a Ray cluster as a session's hands: a lost one costs the trials that ran on it, tried again on the others."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from kernelyard.errors import KernelyardError, MeasurementFailed
from kernelyard.registry.spec import Status, Workload
from kernelyard.store.records import Entry
from kernelyard.tuner.answers import Asked, stored
from kernelyard.tuner.bench import STEPS, Item, Result
from kernelyard.tuner.keeping import Kept
from kernelyard.tuner.plan import Plan
from kernelyard.tuner.report import WorkloadReport
from kernelyard.tuner.search import Outcomes, Searched
from kernelyard.tuner.side_by_side import side_by_side

MOST_LOST = 2
"""Devices that one trial may lose: a config that takes its node down must not take them all."""


class Fleet:
    """Actors (see `ray_device`) with devices of `asked.device`'s model. Calls wait for a free one; `lost` is told of each that goes."""

    def __init__(self, asked: Asked, actors: Sequence[Any], lost: Callable[[str], None]) -> None:
        self.asked, self._lost = asked, lost
        self.outcomes: Outcomes = side_by_side(len(actors))
        self.spent = dict.fromkeys(STEPS.values(), 0.0)
        self._free: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._left, self._counting, self._closed = len(actors), threading.Lock(), False
        for actor in actors:
            self._free.put(actor)

    def close(self) -> None:
        """The run is over: who still waits for a device gives up, in silence."""
        self._closed = True
        self._free.put(None)

    def plan(self, workload: Workload, near: Sequence[Entry]) -> Plan:
        """What to try: asked of a device, as this machine may have none of its kind."""
        planned: Plan = self._call("plan", workload, near)
        return planned

    def answer(self, plan: Plan) -> WorkloadReport | None:
        """From the store here, judged there."""
        found = stored(self.asked.op, plan, self.asked.device)
        if found is None or found.choice is None or not self._call("answers", found, plan):
            return None
        return WorkloadReport(plan.workload, found.choice, found.evidence, from_cache=True)

    def trial(self, item: Item) -> Result:
        """On whichever device is free."""
        try:
            result: Result = self._spend(*self._call("trial", item, most_lost=MOST_LOST))
        except _Loses as lost:
            return Result(Status.CRASHED, str(lost))
        return result

    def decide(self, plan: Plan, found: Mapping[str, Searched], *, interrupted: bool = False) -> Kept:
        """Finals on one device, with the entry that stands in this home; as part of the run here.

        After Ctrl-C on the first device that ends its trial: a trial takes a second, and a call that runs can't be taken back.
        """
        standing = stored(self.asked.op, plan, self.asked.device)
        kept: Kept = self._spend(*self._call("decided", plan, found, standing, interrupted))
        run = self.asked.run_id
        times = tuple(replace(one, run_id=run) for one in kept.measurements)
        return replace(kept, choice=replace(kept.choice, run_id=run), measurements=times)

    def _spend(self, answer: Any, seconds: Mapping[str, float]) -> Any:
        with self._counting:
            for step, more in seconds.items():
                self.spent[step] += more
        return answer

    def _call(self, method: str, *arguments: object, most_lost: int | None = None) -> Any:
        """The answer of a free device; of the next one where that is lost. Raises MeasurementFailed where none is left."""
        from ray import get
        from ray.exceptions import RayActorError, RayTaskError

        lost = 0
        while True:
            actor = self._free.get()
            if actor is None:
                self._free.put(None)  # for whoever else waits
                do = "Every finished trial is kept; the same command goes on from there."
                raise MeasurementFailed(f"no {self.asked.device.name} is left on the Ray cluster.", do=do)
            try:
                answer = get(getattr(actor, method).remote(*arguments))
            except RayActorError as error:
                if self._closed:
                    raise
                lost += 1
                self._lose(error)
                if lost == most_lost:
                    raise _Loses(f"{lost} devices were lost while it ran") from error
            except RayTaskError as error:
                self._free.put(actor)
                raise (error.cause if isinstance(error.cause, KernelyardError) else error) from error
            else:
                self._free.put(actor)
                return answer

    def _lose(self, error: Exception) -> None:
        with self._counting:
            self._left -= 1
            left = self._left
        if not left:
            self._free.put(None)
        self._lost(f"a device of the Ray cluster was lost ({type(error).__name__}), {left} are left; what ran on it is tried again")


class _Loses(Exception):
    """A call lost as many devices as it may."""
