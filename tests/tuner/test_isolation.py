"""One kernel with a config for each misbehaviour: the search ends, every trial tells what became of it, the right fast one wins."""

from __future__ import annotations

import importlib
from dataclasses import replace
from pathlib import Path

import pytest

from kernelyard.registry import registry
from kernelyard.registry.spec import Status
from kernelyard.tuner import studies
from kernelyard.tuner.bench import LOG_TAIL, Result
from kernelyard.tuner.limits import Limits
from kernelyard.tuner.report import TuneReport
from kernelyard.tuner.tune import tune

EXPECTED = {
    "slow": (Status.OK, "", ""),
    "right": (Status.OK, "", ""),
    "flood": (Status.OK, "", "the last words"),
    "wrong": (Status.WRONG, "", ""),
    "raise": (Status.CRASHED, "RuntimeError: this kernel always raises", ""),
    "build_failed": (Status.BUILD_FAILED, "the toy does not compile.", "toy.c:1: error: no such toy"),
    "segfault_in_a_call": (Status.CRASHED, "while checking: segmentation fault (SIGSEGV)", "about to crash"),
    "segfault_when_timed": (Status.CRASHED, "while timing: segmentation fault (SIGSEGV)", "about to crash"),
    "segfault_in_a_build": (Status.CRASHED, "while building: segmentation fault (SIGSEGV)", "about to crash"),
    "hang_in_a_call": (Status.TIMED_OUT, "while checking: still running after 6 s; killed", "about to hang"),
    "hang_in_a_build": (Status.TIMED_OUT, "while building: still running after 5 s; killed", "about to hang"),
    "flood_for_ever": (Status.TIMED_OUT, "while checking: still running after 6 s; killed", "xxx"),
    "memory": (Status.CRASHED, "out of memory", "about to take memory"),
    "os_exit": (Status.CRASHED, "while checking: the kernel ended the process with code 7", "about to leave"),
    "sys_exit": (Status.CRASHED, "while checking: the kernel ended the process with code 1", "no more"),
    "system_exit": (Status.CRASHED, "while checking: the kernel ended the process with code 0", "about to leave"),
}


def limits() -> Limits:
    quick: Limits = importlib.import_module("toy_plugin").QUICK
    longer = {"batches": 8, "most_batches": 8, "budget_s": 0.2}
    return replace(quick, build_s=5.0, check_s=6.0, memory_bytes=4 << 30, finals=longer, again=longer)


@pytest.fixture(scope="module")
def tuned(toy: Path) -> TuneReport:
    op = registry.current().op("misbehaving")
    return tune(op, [op.workload(op.matrices["performance/cpu"][0], "cpu")], "cpu", limits=limits())


@pytest.fixture(scope="module")
def results(tuned: TuneReport, toy: Path) -> dict[str, Result]:
    """What is stored of each config, by its misbehaviour."""
    storage = studies.open_storage(f"sqlite:///{toy / 'kernelyard.db'}")
    (name,) = [study.study_name for study in storage.get_all_studies() if study.study_name.startswith("misbehaving ")]
    import optuna

    study = optuna.load_study(study_name=name, storage=storage)
    space = registry.current().kernel("misbehaving", "toy.tuned").space
    return {str(one.config["behaviour"]): one.result for one in studies.recover(study, studies.Coding(space))}


pytestmark = pytest.mark.timeout(300)


def test_every_config_has_its_trial(results: dict[str, Result]) -> None:
    assert set(results) == set(EXPECTED)


@pytest.mark.parametrize("behaviour", EXPECTED)
def test_a_misbehaviour_is_one_trial_with_its_status_its_reason_and_the_tail_of_its_output(
    behaviour: str, results: dict[str, Result]
) -> None:
    status, reason, tail = EXPECTED[behaviour]
    result = results[behaviour]
    assert result.status is status and reason in result.reason
    assert tail in result.log + result.reason and len(result.log) <= LOG_TAIL


def test_the_fastest_right_config_wins(tuned: TuneReport) -> None:
    (report,) = tuned.workloads
    assert (report.choice.kernel, report.choice.config, report.stored) == ("toy.tuned", {"behaviour": "right"}, True)


def test_what_was_wrong_is_counted_and_was_not_timed(tuned: TuneReport, results: dict[str, Result]) -> None:
    counts = {status: sum(one.status is status for one in results.values()) for status in Status}
    (report,) = tuned.workloads
    assert {name: count for name, count in report.evidence["trials"].items() if count} == {
        str(status): count for status, count in counts.items() if count
    }
    assert all((one.timing is not None) == (one.status is Status.OK) for one in results.values())
