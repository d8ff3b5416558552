"""The search of one space, on results that are made up: order, budget, no config twice, constraints, what a kill leaves."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from optuna.storages import RDBStorage
from optuna.trial import TrialState

from kernelyard.errors import StoreFailed, UsageError
from kernelyard.registry.kernel import Kernel, Support
from kernelyard.registry.space import ConfigSpace, Constraint, Parameter
from kernelyard.registry.spec import Config, Status, TensorSpec, Timing, Workload, config_key
from kernelyard.tuner import studies
from kernelyard.tuner.bench import Finished, Result
from kernelyard.tuner.ending import Ending, Stop
from kernelyard.tuner.plan import KernelPlan
from kernelyard.tuner.samplers import Sampling, able, sampling
from kernelyard.tuner.search import Ended, never, search

WORKLOAD = Workload("twice", (("x", TensorSpec((8,), "float32")),), (), "cpu", (("n", 8),))
SPACE = ConfigSpace(
    (Parameter("a", (2, 4, 8, 32), "width"), Parameter("b", (1, 2, 4, 8), "depth"), Parameter("c", (False, True), "switch")),
    (Constraint(lambda config, workload: int(config["a"]) * int(config["b"]) <= 32, "a*b must be at most 32"),),
)

TPE = sampling("tpe")


def kernel(space: ConfigSpace) -> Kernel:
    return Kernel("toy.tuned", "twice", "toy", "twice x", "toy_plugin:unused", Support(("cpu",), ("float32",)), space)


def plan(space: ConfigSpace = SPACE, budget: int = 20, first: tuple[Config, ...] = (), whole: bool = False) -> KernelPlan:
    configs = tuple(space.configs(WORKLOAD)) if whole else None
    return KernelPlan(kernel(space), first, configs, len(configs) if configs else budget, 0, "digest", {})


def measured(config: Config) -> Result:
    time_us = 1.0 + abs(int(config["a"]) - 8) + abs(int(config["b"]) - 4)
    return Result(Status.OK, timing=Timing(time_us, time_us, time_us, "device", "monotonic", 3, 30), build_s=0.1)


@pytest.fixture
def storage(tmp_path: Path, home: Path) -> RDBStorage:
    return studies.open_storage(f"sqlite:///{tmp_path / 'trials.db'}")


class Recorder:
    """Runs a config by giving a result, and remembers that it was run."""

    def __init__(self, result: Callable[[Config], Result] = measured) -> None:
        self.configs: list[Config] = []
        self._result = result

    def __call__(self, config: Config) -> Result:
        self.configs.append(config)
        return self._result(config)


Hunt = Callable[..., list[Finished]]


@pytest.fixture
def hunt(storage: RDBStorage) -> Hunt:
    def run(
        one: KernelPlan, run: Callable[[Config], Result] = measured, anew: bool = False, how: Sampling = TPE, stop: Stop = never
    ) -> list[Finished]:
        study = studies.open_study(storage, one.kernel, {"op": "twice", "label": "8 fp32"}, how.make(0), anew=anew)
        return search(study, one, WORKLOAD, run, lambda config, result, resumed: None, how, stop).finished

    return run


def keys(found: list[Finished]) -> list[str]:
    return [config_key(one.config) for one in found]


def test_a_small_space_is_tried_whole_in_the_order_wanted_and_each_config_once(hunt: Hunt) -> None:
    default, hint = {"a": 4, "b": 2, "c": True}, {"a": 32, "b": 1, "c": False}
    found = keys(hunt(plan(first=(default, hint), whole=True)))
    assert found[:2] == [config_key(default), config_key(hint)]
    assert sorted(found) == sorted(config_key(config) for config in SPACE.configs(WORKLOAD))


def test_tpe_spends_its_budget_on_new_configs_that_keep_the_constraints(hunt: Hunt) -> None:
    built = Recorder()
    found = hunt(plan(budget=18), built)
    assert len(built.configs) == 18 and len(set(keys(found))) == len(found)
    assert all(SPACE.allows(config, WORKLOAD) for config in built.configs)
    assert {one.result.status for one in found} <= {Status.OK, Status.PRUNED}


@pytest.mark.parametrize("name", able())
def test_every_sampler_tries_each_config_once_and_only_what_constraints_allow(name: str, hunt: Hunt) -> None:
    built = Recorder()
    found = hunt(plan(budget=100), built, how=sampling(name))
    assert sorted(map(config_key, built.configs)) == sorted(config_key(config) for config in SPACE.configs(WORKLOAD))
    assert len(set(keys(found))) == len(found)


def test_a_parameter_coded_by_place_comes_back_with_its_value_and_type(storage: RDBStorage) -> None:
    mixed = ConfigSpace((Parameter("a", (1, True, "x", 0.5), "kinds"), Parameter("b", (8,), "one")))
    coding = studies.Coding(mixed, places=True)
    configs = list(mixed.configs(WORKLOAD))
    assert [repr(coding.decode(coding.encode(config))) for config in configs] == list(map(repr, configs))


def test_a_search_by_places_goes_on_from_what_was_tried(hunt: Hunt) -> None:
    by_place = replace(sampling("random"), places=True)
    first = keys(hunt(plan(budget=5), how=by_place))
    more = Recorder()
    hunt(plan(budget=9), more, how=by_place)
    assert len(more.configs) == 4 and not set(first) & set(map(config_key, more.configs))


def test_a_limit_ends_a_search_and_is_named(storage: RDBStorage) -> None:
    one = plan(budget=20)
    study = studies.open_study(storage, one.kernel, {"op": "twice", "label": "8 fp32"}, TPE.make(0), anew=False)
    ignored: Ended = lambda config, result, resumed: None  # noqa: E731
    same = Timing(5.0, 4.0, 6.0, "device", "monotonic", 3, 30)
    ended = search(study, one, WORKLOAD, lambda config: Result(Status.OK, timing=same), ignored, TPE, Ending(patience=3).started())
    assert ended.stopped == "no gain beyond noise in 3 trials" and sum(f.result.status is Status.OK for f in ended.finished) == 4


def test_a_search_that_used_its_trials_was_not_ended_early(storage: RDBStorage) -> None:
    one = plan(budget=3)
    study = studies.open_study(storage, one.kernel, {"op": "twice", "label": "8 fp32"}, TPE.make(0), anew=False)
    ignored: Ended = lambda config, result, resumed: None  # noqa: E731
    assert search(study, one, WORKLOAD, measured, ignored, TPE, lambda found: "over" if len(found) > 2 else "").stopped == ""


def test_tpe_ends_when_a_small_space_is_used_up(hunt: Hunt) -> None:
    tiny = ConfigSpace((Parameter("a", (1, 2, 4), "width"), Parameter("b", (1,), "depth")))
    assert len(hunt(plan(tiny, budget=50))) == 3


def test_a_space_without_parameters_has_one_trial(hunt: Hunt) -> None:
    empty = ConfigSpace()
    assert hunt(plan(empty, whole=True), lambda config: measured({"a": 1, "b": 1})) and len(hunt(plan(empty, whole=True))) == 1


def test_a_larger_budget_goes_on_from_what_was_tried(hunt: Hunt) -> None:
    first = hunt(plan(budget=5))
    more = Recorder()
    found = hunt(plan(budget=12), more)
    assert len(more.configs) == 7 and set(keys(first)) <= set(keys(found)) and len(set(keys(found))) == len(found)


def test_anew_forgets_nothing_and_starts_over(hunt: Hunt, storage: RDBStorage) -> None:
    hunt(plan(budget=3))
    again = Recorder()
    hunt(plan(budget=3), again, anew=True)
    assert len(again.configs) == 3 and len(storage.get_all_studies()) == 2


def test_what_failed_keeps_its_status_and_log_and_is_not_tried_again(hunt: Hunt) -> None:
    first = ({"a": 4, "b": 2, "c": True}, {"a": 2, "b": 2, "c": True})
    hunt(plan(budget=2, first=first), lambda config: Result(Status.CRASHED, "segmentation fault", "the log"))
    again = Recorder()
    found = hunt(plan(budget=2, first=first), again)
    assert again.configs == [] and [(one.result.status, one.result.log) for one in found] == [(Status.CRASHED, "the log")] * 2


def test_an_interrupted_trial_is_closed_and_its_config_tried_later(hunt: Hunt) -> None:
    def stop(config: Config) -> Result:
        raise KeyboardInterrupt

    one = plan(whole=True, first=({"a": 4, "b": 2, "c": True},))
    with pytest.raises(KeyboardInterrupt):
        hunt(one, stop)
    assert keys(hunt(one))[0] == config_key(one.first[0])


def leave_running(storage: RDBStorage, one: KernelPlan, result: Result | None) -> Config:
    """What kill -9 leaves: a trial that runs for ever, of a process that is gone, with or without its result."""
    study = studies.open_study(storage, one.kernel, {"op": "twice", "label": "8 fp32"}, TPE.make(0), anew=False)
    trial, config = studies.ask(study, studies.Coding(one.kernel.space), {"a": 2, "b": 2, "c": True})
    trial.set_user_attr(studies.OWNER, {**trial.user_attrs[studies.OWNER], "started": "long ago"})
    if result is not None:
        trial.set_user_attr(studies.RESULT, {**json.loads(json.dumps(result.__dict__ | {"timing": None})), "status": str(result.status)})
    return config


def test_a_trial_left_by_a_dead_process_is_closed_and_tried_anew(hunt: Hunt, storage: RDBStorage) -> None:
    one = plan(whole=True)
    config = leave_running(storage, one, None)
    assert config_key(config) in keys(hunt(one))
    states = [trial.state for study in storage.get_all_studies() for trial in storage.get_all_trials(study._study_id)]
    assert states.count(TrialState.FAIL) == 1 and TrialState.RUNNING not in states


def test_a_trial_that_was_written_but_not_ended_counts(hunt: Hunt, storage: RDBStorage) -> None:
    one = plan(whole=True)
    config = leave_running(storage, one, Result(Status.WRONG, "the third element"))
    built = Recorder()
    found = hunt(one, built)
    assert config not in built.configs and found[0].result == Result(Status.WRONG, "the third element")


def test_a_waiting_trial_left_by_a_kill_is_not_run_twice(hunt: Hunt, storage: RDBStorage) -> None:
    one = plan(whole=True)
    study = studies.open_study(storage, one.kernel, {"op": "twice", "label": "8 fp32"}, TPE.make(0), anew=False)
    study.enqueue_trial({"a": 32, "b": 1, "c": True})
    found = keys(hunt(one))
    assert len(set(found)) == len(found) == len(one.whole or ())


def test_another_key_is_another_study(storage: RDBStorage) -> None:
    one = plan(whole=True)
    keys = [{"op": "twice", "label": "8 fp32", "source": source} for source in ("old", "new")]
    old, new = (studies.open_study(storage, one.kernel, key, TPE.make(0), anew=False) for key in keys)
    assert old.study_name != new.study_name


def test_a_driver_that_is_not_installed_is_named(home: Path) -> None:
    with pytest.raises(UsageError, match="driver"):
        studies.open_storage("mysql+mysqldb://nobody@localhost/none")


def test_a_storage_that_can_not_be_opened_is_one_line(home: Path) -> None:
    with pytest.raises(StoreFailed) as caught:
        studies.open_storage("sqlite:////dev/null/trials.db")
    assert "\n" not in str(caught.value)


def test_optuna_and_the_store_share_one_file(home: Path) -> None:
    from kernelyard.store.database import open_store

    with open_store() as store:
        studies.open_storage(f"sqlite:///{store.path}")
        with closing(sqlite3.connect(store.path)) as connection:
            assert {"choices", "studies"} <= {name for (name,) in connection.execute("select name from sqlite_master")}
            assert connection.execute("pragma journal_mode").fetchone() == ("wal",)
    open_store().close()
