"""The search of one kernel's space on one workload: first the configs people would try, then all the others or a sampler's choice."""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import chain, islice

from optuna.study import Study
from optuna.trial import Trial

from kernelyard.registry.spec import Config, Status, Workload, config_key
from kernelyard.tuner import studies
from kernelyard.tuner.bench import Finished, Result
from kernelyard.tuner.ending import Stop
from kernelyard.tuner.plan import KernelPlan
from kernelyard.tuner.samplers import Sampling

REPEATS = 5
"""Asks in a row that gave nothing new before a config is drawn: in a small space a sampler may repeat itself for ever."""

DRAWS = 2000
"""Random combinations tried for one that is valid and new; after that the space counts as searched."""

Try = Callable[[Config], Result]
Ended = Callable[[Config, Result, bool], None]
"""(config, result, whether it was found finished)"""

Asked = tuple[Trial, Config]
Outcome = tuple[Trial, Config, Result]
Outcomes = Callable[[Study, Iterator[Asked], Try], Generator[Outcome, None, None]]
"""How trials are run: gives each that is asked for, with its result; closes as failed what was interrupted."""


@dataclass(frozen=True)
class Searched:
    """What a search found, the configs that constraints forbid at the end. `stopped`: the limit that ended it early, if one did."""

    finished: list[Finished]
    stopped: str = ""


def never(finished: Sequence[Finished]) -> str:
    """No limit but the plan's."""
    return ""


def one_by_one(study: Study, trials: Iterator[Asked], run: Try) -> Generator[Outcome, None, None]:
    """One trial at a time, in this thread."""
    for trial, config in trials:
        try:
            result = run(config)
        except BaseException:
            studies.abandon(study, trial, "interrupted")
            raise
        yield trial, config, result


def search(
    study: Study,
    plan: KernelPlan,
    workload: Workload,
    run: Try,
    ended: Ended,
    how: Sampling,
    stop: Stop = never,
    seed: int = 0,
    outcomes: Outcomes = one_by_one,
) -> Searched:
    """Run trials until the plan's budget is used, nothing is left or `stop` says so; the finished ones of earlier runs count.

    Each trial is committed as it ends. An interrupted one is closed as failed and the exception goes on. The study's sampler is one that
    `how` made; `run` may measure or look a recorded result up. `outcomes` runs trials: one after another, or several at a time.
    """
    coding = studies.Coding(plan.kernel.space, how.places)
    finished = studies.recover(study, coding)
    for one in finished:
        ended(one.config, one.result, True)
    hunt = _Hunt(study, plan, workload, coding, {config_key(one.config) for one in finished}, ended)
    spent = sum(one.tried for one in finished)
    trials = islice(hunt.trials(random.Random(seed), how.walks), max(plan.budget - spent, 0))
    stopped = ""

    def wanted() -> Iterator[Asked]:
        nonlocal stopped
        while not (stopped := stop(finished)) and (asked := next(trials, None)) is not None:
            yield asked

    with closing(outcomes(study, wanted(), run)) as results:  # an interruption closes what runs now, not when its traceback is gone
        for trial, config, result in results:
            studies.finish(study, trial, result)
            finished.append(Finished(config, result))
            ended(config, result, False)
    complete = sum(one.tried for one in finished) >= plan.budget
    return Searched([*finished, *hunt.pruned], "" if complete else stopped)


class _Hunt:
    """Where the next config comes from: the wanted ones first, then the rest or the sampler's, then random ones; never one twice."""

    def __init__(self, study: Study, plan: KernelPlan, workload: Workload, coding: studies.Coding, tried: set[str], ended: Ended) -> None:
        self._study, self._plan, self._workload, self._ended, self._coding = study, plan, workload, ended, coding
        self.tried = tried
        self.pruned: list[Finished] = []

    def trials(self, rng: random.Random, walks: bool) -> Iterator[tuple[Trial, Config]]:
        """Trials that are asked for and not yet run."""
        grid = self._plan.kernel.space.configs(self._workload) if walks and self._plan.whole is None else ()
        for config in chain(self._plan.first, self._plan.whole or (), grid):
            if config_key(config) not in self.tried:
                yield self._ask_for(config)
        while self._plan.whole is None and not walks:
            suggested = self._suggested() or self._drawn(rng)
            if suggested is None:
                return
            yield suggested

    def _ask_for(self, config: Config) -> tuple[Trial, Config]:
        self.tried.add(config_key(config))  # now and not when it ends: others may be asked for meanwhile
        trial, given = studies.ask(self._study, self._coding, config)
        while config_key(given) != config_key(config):  # one that a killed run had queued
            studies.abandon(self._study, trial, "queued by another run")
            taken = not studies.queued(self._study)  # or ours, by a tuner elsewhere on the same storage
            trial, given = studies.ask(self._study, self._coding, config if taken else None)
        return trial, config

    def _suggested(self) -> tuple[Trial, Config] | None:
        """The sampler's next config that is new and keeps the constraints; what breaks them is recorded as pruned, so that it learns."""
        for _ in range(REPEATS):
            trial, config = studies.ask(self._study, self._coding)
            answer = self._plan.kernel.space.allows(config, self._workload)
            if config_key(config) in self.tried:
                studies.abandon(self._study, trial, "tried before")
            elif answer:
                self.tried.add(config_key(config))
                return trial, config
            else:
                self._prune(trial, config, answer.reason)
        return None

    def _prune(self, trial: Trial, config: Config, reason: str) -> None:
        pruned = Result(Status.PRUNED, reason)
        studies.finish(self._study, trial, pruned)
        self.tried.add(config_key(config))
        self.pruned.append(Finished(config, pruned))
        self._ended(config, pruned, False)

    def _drawn(self, rng: random.Random) -> tuple[Trial, Config] | None:
        space = self._plan.kernel.space
        for _ in range(DRAWS):
            config = {parameter.name: rng.choice(parameter.values) for parameter in space.parameters}
            if config_key(config) not in self.tried and space.allows(config, self._workload):
                return self._ask_for(config)
        return None
