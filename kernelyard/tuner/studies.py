"""Optuna's studies as the tuner keeps them: one for a kernel on a workload under everything that its times depend on.

Every finished trial is committed when it ends, so that a kill loses only the trial that ran. A trial left running by
a process that is gone is closed: as finished if its result had been written, else as failed, and its config is tried anew.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.samplers import BaseSampler
from optuna.storages import RDBStorage
from optuna.study import Study
from optuna.trial import FrozenTrial, Trial, TrialState
from sqlalchemy import event
from sqlalchemy.exc import SQLAlchemyError

from kernelyard.errors import StoreFailed, UsageError, masked
from kernelyard.registry.kernel import Kernel
from kernelyard.registry.space import ConfigSpace
from kernelyard.registry.spec import Config, Status, Timing, config_key, digest
from kernelyard.store.files import file_lock
from kernelyard.tuner import process
from kernelyard.tuner import storage_urls as urls
from kernelyard.tuner.bench import Finished, Result
from kernelyard.tuner.locks import lock_path

optuna.logging.set_verbosity(optuna.logging.ERROR)
logging.getLogger("alembic").setLevel(logging.WARNING)

RESULT, OWNER = "result", "owner"


def open_storage(url: str) -> RDBStorage:
    """Optuna's storage at a URL, created by one process of this home at a time. Raises UsageError, StoreFailed."""
    parsed = urls.parsed(url)
    sqlite = parsed.get_backend_name() == "sqlite"
    try:
        with file_lock(lock_path("storage", digest(url))), failures(masked(url)):
            storage = RDBStorage(parsed.render_as_string(hide_password=False), engine_kwargs=urls.engine_options(parsed))
    except ImportError as error:
        raise urls.without_driver(parsed, error) from error
    except StoreFailed as error:
        if sqlite:
            raise
        do = error.do or "Look whether the server runs, and at its user and password."
        raise UsageError(error.asked, exists=error.exists, do=do) from error
    if sqlite:
        event.listen(storage.engine, "connect", _quick_commits)
        storage.engine.dispose()
    return storage


def _quick_commits(connection: Any, record: object) -> None:
    """A trial makes some twelve commits: so each survives kill -9, and costs no flush to the disk (7 to 20 ms on a busy one)."""
    connection.execute("pragma journal_mode = wal")
    connection.execute("pragma synchronous = normal")


@contextmanager
def failures(where: str) -> Iterator[None]:
    """Optuna's and SQLAlchemy's errors as StoreFailed, in one line."""
    try:
        yield
    except (optuna.exceptions.StorageInternalError, SQLAlchemyError) as error:
        cause = error.__cause__ or getattr(error, "orig", None) or error
        raise StoreFailed(f"the trials' storage {where} can't be used: {urls.told(cause)}.") from error
    except RuntimeError as error:
        if "optuna storage upgrade" not in str(error):
            raise
        raise StoreFailed(f"{where} was written by another version of Optuna.", do=f"optuna storage upgrade --storage {where}") from error


def open_study(storage: RDBStorage, kernel: Kernel, key: Mapping[str, Any], sampler: BaseSampler, *, anew: bool) -> Study:
    """The newest study under a key, or with `anew` one more. `key` is all that its times depend on."""
    name = f"{key['op']} {key['label']} {kernel.name} {digest(dict(key))}"
    taken = {study.study_name for study in storage.get_all_studies()}
    generation = 1
    while f"{name} #{generation + 1}" in taken:
        generation += 1
    generation += anew and f"{name} #{generation}" in taken
    study = optuna.create_study(storage=storage, study_name=f"{name} #{generation}", sampler=sampler, load_if_exists=True)
    if not study.user_attrs:
        study.set_user_attr("key", dict(key))
    return study


@dataclass(frozen=True)
class Coding:
    """A space as Optuna sees it: values as categories, or with `places` the place of each value in its declared order."""

    space: ConfigSpace
    places: bool = False

    def distributions(self) -> dict[str, BaseDistribution]:
        """A distribution for each parameter."""
        if self.places:
            return {parameter.name: IntDistribution(0, len(parameter.values) - 1) for parameter in self.space.parameters}
        return {parameter.name: CategoricalDistribution(parameter.values) for parameter in self.space.parameters}

    def encode(self, config: Config) -> dict[str, Any]:
        """What Optuna is given for a config of the space."""
        if not self.places:
            return dict(config)
        return {p.name: list(map(repr, p.values)).index(repr(config[p.name])) for p in self.space.parameters}

    def decode(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """The config of what Optuna gave."""
        return {p.name: p.values[params[p.name]] for p in self.space.parameters} if self.places else dict(params)


def recover(study: Study, coding: Coding) -> list[Finished]:
    """Close what dead processes left running; everything that is finished, each config once."""
    for trial in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
        if not process.lives(trial.user_attrs.get(OWNER, {})):
            _close(study, trial)
    finished: dict[str, Finished] = {}
    for trial in study.get_trials(deepcopy=False, states=(TrialState.COMPLETE, TrialState.PRUNED)):
        if RESULT in trial.user_attrs:
            config = coding.decode(trial.params)
            finished.setdefault(config_key(config), Finished(config, _result(trial.user_attrs[RESULT])))
    return list(finished.values())


def _close(study: Study, trial: FrozenTrial) -> None:
    if RESULT in trial.user_attrs:
        tell(study, trial.number, _result(trial.user_attrs[RESULT]))
    else:
        study.tell(trial.number, state=TrialState.FAIL)


def ask(study: Study, coding: Coding, config: Config | None = None) -> tuple[Trial, Config]:
    """A new trial, of the config if one is given; marked as this process's."""
    if config is not None:
        study.enqueue_trial(coding.encode(config))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Optuna's about experimental parts, on every call
        trial = study.ask(coding.distributions())
    trial.set_user_attr(OWNER, process.me())
    return trial, coding.decode(trial.params)


def queued(study: Study) -> bool:
    """Whether a config waits to be asked for."""
    return bool(study.get_trials(deepcopy=False, states=(TrialState.WAITING,)))


def finish(study: Study, trial: Trial, result: Result) -> None:
    """Write what became of a trial, then end it."""
    trial.set_user_attr(RESULT, {**asdict(result), "status": str(result.status)})
    tell(study, trial.number, result)


def tell(study: Study, number: int, result: Result) -> None:
    """End a trial. What did not work is 'pruned' for Optuna: TPE then keeps away from it, where it would forget a failed one."""
    if result.timing is not None:
        study.tell(number, result.timing.median_us)
    else:
        study.tell(number, state=TrialState.PRUNED)


def abandon(study: Study, trial: Trial, why: str) -> None:
    """End a trial that was not tried."""
    trial.set_user_attr("abandoned", why)
    study.tell(trial.number, state=TrialState.FAIL)


def _result(values: Mapping[str, Any]) -> Result:
    timing = values.get("timing")
    return Result(Status(values["status"]), values["reason"], values["log"], Timing(**timing) if timing else None, values.get("build_s"))
