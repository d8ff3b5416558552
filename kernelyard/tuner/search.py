"""The search of one kernel's space on one workload: first the configs people would try, then all the others or TPE's choice."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Iterator
from itertools import islice

from optuna.samplers import BaseSampler, RandomSampler, TPESampler
from optuna.study import Study
from optuna.trial import Trial

from kernelyard.registry.spec import Config, Status, Workload, config_key
from kernelyard.tuner import studies
from kernelyard.tuner.bench import Finished, Result
from kernelyard.tuner.plan import KernelPlan

REPEATS = 5
"""Asks in a row that gave nothing new before a config is drawn: in a small space TPE may repeat itself for ever."""

DRAWS = 2000
"""Random combinations tried for one that is valid and new; after that the space counts as searched."""

Try = Callable[[Config], Result]
Ended = Callable[[Config, Result, bool], None]
"""(config, result, whether it was found finished)"""


def sampler(plan: KernelPlan) -> BaseSampler:
    """TPE where the space is not searched whole; it models parameters together, for tile sizes that only pay in pairs."""
    if plan.whole is not None:
        return RandomSampler(seed=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Optuna calls multivariate experimental
        return TPESampler(seed=0, multivariate=True)


def search(study: Study, plan: KernelPlan, workload: Workload, run: Try, ended: Ended) -> list[Finished]:
    """Run trials until the plan's budget is used or nothing is left; the finished ones of earlier runs count.

    Each trial is committed as it ends. An interrupted one is closed as failed and the exception goes on.
    """
    finished = studies.recover(study)
    for one in finished:
        ended(one.config, one.result, True)
    hunt = _Hunt(study, plan, workload, {config_key(one.config) for one in finished}, ended)
    spent = sum(one.result.status is not Status.PRUNED for one in finished)
    for trial, config in islice(hunt.trials(), max(plan.budget - spent, 0)):
        try:
            result = run(config)
        except BaseException:
            studies.abandon(study, trial, "interrupted")
            raise
        studies.finish(study, trial, result)
        hunt.tried.add(config_key(config))
        finished.append(Finished(config, result))
        ended(config, result, False)
    return [*finished, *hunt.pruned]


class _Hunt:
    """Where the next config comes from: the wanted ones first, then the rest or TPE's, then random ones; never one twice."""

    def __init__(self, study: Study, plan: KernelPlan, workload: Workload, tried: set[str], ended: Ended) -> None:
        self._study, self._plan, self._workload, self._ended = study, plan, workload, ended
        self._space = studies.distributions(plan.kernel.space)
        self.tried = tried
        self.pruned: list[Finished] = []

    def trials(self) -> Iterator[tuple[Trial, Config]]:
        """Trials that are asked for and not yet run."""
        for config in (*self._plan.first, *(self._plan.whole or ())):
            if config_key(config) not in self.tried:
                yield self._ask_for(config)
        rng = random.Random(0)
        while self._plan.whole is None:
            suggested = self._suggested() or self._drawn(rng)
            if suggested is None:
                return
            yield suggested

    def _ask_for(self, config: Config) -> tuple[Trial, Config]:
        trial, given = studies.ask(self._study, self._space, config)
        while config_key(given) != config_key(config):  # one that a killed run had queued
            studies.abandon(self._study, trial, "queued by another run")
            trial, given = studies.ask(self._study, self._space)
        return trial, config

    def _suggested(self) -> tuple[Trial, Config] | None:
        """TPE's next config that is new and keeps the constraints; what breaks them is recorded as pruned, so that TPE learns."""
        for _ in range(REPEATS):
            trial, config = studies.ask(self._study, self._space)
            answer = self._plan.kernel.space.allows(config, self._workload)
            if config_key(config) in self.tried:
                studies.abandon(self._study, trial, "tried before")
            elif answer:
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
