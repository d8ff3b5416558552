"""When a search ends before its trials: no gain beyond noise, time, and limits that mean nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernelyard.errors import UnknownName, UsageError
from kernelyard.registry.spec import Status, Timing
from kernelyard.tuner import ending, samplers
from kernelyard.tuner.bench import Finished, Result
from kernelyard.tuner.ending import Ending, without_gain
from tests.tuner.test_tune import run


def timed(median: float, low: float) -> Finished:
    return Finished({}, Result(Status.OK, timing=Timing(median, low, 2 * median - low, "device", "monotonic", 3, 30)))


FAILED, PRUNED = Finished({}, Result(Status.CRASHED, "gone")), Finished({}, Result(Status.PRUNED, "constraint"))


def test_a_gain_inside_the_interval_of_the_best_is_none() -> None:
    assert without_gain([timed(10, 9), timed(9.5, 9.4), timed(9.1, 9)]) == 2


def test_many_small_gains_add_up_to_one() -> None:
    assert without_gain([timed(10, 9), timed(9.5, 8.5), timed(8.9, 8)]) == 0


def test_failed_trials_count_and_forbidden_configs_do_not() -> None:
    assert without_gain([timed(10, 9), FAILED, PRUNED, timed(11, 10)]) == 2


def test_patience_ends_a_search_after_so_many_and_says_so() -> None:
    stop = Ending(patience=2).started()
    assert stop([timed(10, 9), FAILED]) == "" and stop([timed(10, 9), FAILED, FAILED]) == "no gain beyond noise in 2 trials"


def test_minutes_end_a_search_and_the_first_limit_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([100.0, 100.0 + 89, 100.0 + 90])
    monkeypatch.setattr(ending.time, "monotonic", lambda: next(clock))
    stop = Ending(minutes=1.5, patience=5).started()
    assert stop([timed(10, 9)]) == "" and stop([timed(10, 9)]) == "1.5 minutes are over"


@pytest.mark.parametrize("limits", [{"minutes": 0}, {"minutes": float("nan")}, {"patience": 0}, {"minutes": -1}])
def test_a_limit_of_nothing_is_refused(limits: dict[str, float]) -> None:
    with pytest.raises(UsageError, match="more than 0"):
        Ending(**limits)  # type: ignore[arg-type]


def test_a_sampler_that_does_not_exist_names_those_that_do() -> None:
    with pytest.raises(UnknownName, match="cmaes, gp, grid, hub:package/name"):
        samplers.check("annealing")


def test_a_sampler_whose_library_is_missing_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(samplers, "installed", lambda package: package == "torch")
    for name, package in (("cmaes", "cmaes"), ("gp", "scipy"), ("hub:samplers/auto_sampler", "optunahub")):
        with pytest.raises(UsageError, match=rf"Here run tpe, random, grid\. pip install {package}"):
            samplers.sampling(name)


def test_a_search_that_was_ended_early_is_reported_and_goes_on_when_more_is_asked(toy: Path) -> None:
    (report,) = run("many", patience=1).workloads
    searched = report.evidence["searched"]["toy.tuned"]
    assert searched["stopped"] == "no gain beyond noise in 1 trials" and not searched["whole"] and searched["budget"] < 6
    (whole,) = run("many").workloads
    assert not whole.from_cache and whole.evidence["searched"]["toy.tuned"] == {**searched, "budget": 6, "whole": True, "stopped": ""}
