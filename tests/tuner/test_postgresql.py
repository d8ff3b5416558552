"""Trials on a real PostgreSQL server, the choice in the home; and what is said where the server can't be used."""

from __future__ import annotations

import importlib
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import optuna
import pytest

from kernelyard.cli import run
from kernelyard.cli.output import command_line
from kernelyard.registry import registry
from kernelyard.tuner import search, studies
from kernelyard.tuner.plan import plan
from kernelyard.tuner.progress import Progress
from kernelyard.tuner.report import TuneReport
from kernelyard.tuner.samplers import sampling
from kernelyard.tuner.tune import tune
from tests import postgresql


@pytest.fixture(scope="module")
def url(toy: Path) -> Iterator[str]:
    pytest.importorskip("pg8000", reason="the driver pg8000 is not installed")
    with postgresql.server() as found:
        yield found


def tuned(name: str, url: str, seen: list[Progress], trials: int | None = None) -> TuneReport:
    op, quick = registry.current().op(name), importlib.import_module("toy_plugin").QUICK
    workloads = [op.workload(op.matrices["performance/cpu"][0], "cpu")]
    return tune(op, workloads, "cpu", trials=trials, limits=quick, storage=url, progress=seen.append)


def tables(home: Path) -> set[str]:
    with closing(sqlite3.connect(home / "kernelyard.db")) as connection:
        return {name for (name,) in connection.execute("select name from sqlite_master where type = 'table'")}


def test_trials_go_to_the_server_and_the_choice_to_the_home(toy: Path, url: str) -> None:
    report = tuned("many", url, [])
    storage = studies.open_storage(url)
    (study,) = [one for one in storage.get_all_studies() if one.study_name.startswith("many ")]
    assert [trial.state.name for trial in storage.get_all_trials(study._study_id)] == ["COMPLETE"] * 6
    assert "choices" in tables(toy) and "studies" not in tables(toy)
    seen: list[Progress] = []
    again = tuned("many", url, seen)
    assert again.from_cache and again.workloads[0].choice == report.workloads[0].choice


def test_another_home_goes_on_from_the_trials_of_the_same_kind_of_device(url: str, toy: Path) -> None:
    first: list[Progress] = []
    one = tuned("idle", url, first)
    for file in toy.glob("kernelyard.db*"):
        file.unlink()
    seen: list[Progress] = []
    other = tuned("idle", url, seen)
    assert [event.stage for event in first].count("trial") == 1 and [event.stage for event in seen].count("trial") == 0
    assert other.workloads[0].choice.kernel == one.workloads[0].choice.kernel


def test_a_config_that_another_tuner_took_from_the_queue_is_asked_for_again(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    op = registry.current().op("many")
    (one,) = plan(registry.current(), op, op.workload(op.matrices["performance/cpu"][0], "cpu"), 3).searches
    key = {"op": "many", "label": "taken"}
    here, there = (studies.open_study(studies.open_storage(url), one.kernel, key, sampling("random").make(0), anew=False) for _ in "ab")
    queue, taken = here.enqueue_trial, list[int]()

    def raced(params: dict[str, object]) -> None:
        queue(params)
        if not taken:
            taken.append(there.ask().number)

    monkeypatch.setattr(here, "enqueue_trial", raced)
    hunt = search._Hunt(here, one, op.workload(op.matrices["performance/cpu"][0], "cpu"), studies.Coding(one.kernel.space), set(), print)
    trial, config = hunt._ask_for({"work": 13})
    assert taken == [0] and config == {"work": 13} == trial.params
    states = [trial.state for trial in here.get_trials()]
    assert states.count(optuna.trial.TrialState.RUNNING) == 2 and len(states) <= 3 and not studies.queued(here)


@pytest.mark.parametrize(
    "bad, told",
    [
        ("postgresql://tuner:wr0ng-pass@{at}/postgres", "password authentication failed"),
        ("postgresql://tuner:wr0ng-pass@127.0.0.1:1/postgres", "Can't create a connection to host 127.0.0.1 and port 1"),
        ("postgresql+psycopg2://tuner:wr0ng-pass@{at}/postgres", "pip install 'kernelyard[postgresql]'"),
        ("mysql://tuner:wr0ng-pass@{at}/postgres", "needs the driver MySQLdb"),
        ("postgresql+none://tuner:wr0ng-pass@{at}/postgres", "no database URL"),
        ("postgresql://tuner:wr0ng-pass@host:port/postgres", "no database URL"),
        ("trials", "no database URL"),
    ],
)
def test_a_storage_that_can_not_be_used_is_refused_and_no_password_shown(
    bad: str, told: str, url: str, home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KERNELYARD_STORAGE", bad.format(at=url.partition("@")[2].partition("/")[0]))
    assert run(["tune", "many", "--device", "cpu"]) == 2
    err = capsys.readouterr().err
    assert told in err and "wr0ng-pass" not in err and "Traceback" not in err


def test_a_stored_command_has_no_password(monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["--storage", "postgresql://tuner:p@ss:w/rd@host/name?password=again&x=1", "--storage=postgresql://a:b@c/d", "--trials", "3"]
    monkeypatch.setattr(sys, "argv", ["kernelyard", "tune", *words])
    told = command_line()
    assert not any(secret in told for secret in ("p@ss", "again", "a:b@")) and "host/name" in told and told.endswith("--trials 3")
