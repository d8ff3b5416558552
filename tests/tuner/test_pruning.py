"""`cache prune` and `cache export --format t4` on searches as the tuner keeps them: real studies of a real kernel."""

from __future__ import annotations

import json
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from optuna.samplers import RandomSampler

from kernelyard.cli import run
from kernelyard.measure.measured import PROTOCOL
from kernelyard.registry import registry
from kernelyard.registry.machine import identity
from kernelyard.registry.spec import Status, Timing, Workload, digest
from kernelyard.store import trials
from kernelyard.store.choices import listed
from kernelyard.store.database import open_store
from kernelyard.store.files import database_path, file_lock
from kernelyard.store.records import Measurement
from kernelyard.tuner import studies
from kernelyard.tuner.bench import Result
from kernelyard.tuner.locks import lock_path
from tests.cli import stored

OK = Result(Status.OK, "", timing=Timing(4.0, 3.9, 4.1, "device", "monotonic", 3, 300), build_s=0.5)
KERNEL = "cpp.onepass"


def key_of(workload: Workload, **changes: Any) -> dict[str, Any]:
    one = stored.choice(workload)
    key = {
        "op": one.op, "label": workload.label(), "workload": one.workload_key, "kernel": KERNEL, "device": one.device_key, "mode": one.mode,
        "protocol": PROTOCOL, "contract": one.contract_hash, "source": one.source_hash, "space": one.space_hash,
        "versions": dict(one.versions),
    }  # fmt: skip
    return {**key, **changes}


def search(workload: Workload, *results: Result, places: bool = False, **changes: Any) -> None:
    """A search that finished these trials, and was killed in one more; `places` as a sampler of places keeps configs."""
    with open_store() as store:
        storage = studies.open_storage(f"sqlite:///{store.path}")
    kernel, key = registry.current().kernel("rmsnorm", KERNEL), key_of(workload, **changes, **({"coding": "places"} if places else {}))
    study = studies.open_study(storage, kernel, key, RandomSampler(0), anew=False)
    coding = studies.Coding(kernel.space, places)
    configs = list(kernel.space.configs(workload))
    for result, config in zip(results, configs, strict=False):
        studies.finish(study, studies.ask(study, coding, config)[0], result)
    studies.ask(study, coding, configs[len(results)])
    storage.engine.dispose()


def measure(run_id: str, created_at: str = "2026-01-01T00:00:00Z") -> None:
    of = stored.workload()
    assert OK.timing is not None
    item = Measurement(run_id, "rmsnorm", of.key(), of.label(), KERNEL, {}, identity("cpu").key(), OK.timing, "finals", PROTOCOL)
    with open_store() as store, store.db.atomic():
        store.save_measurements([item])
        store.db.execute("update measurements set created_at = ? where run_id = ?", [created_at, run_id])


def prune(capsys: pytest.CaptureFixture[str], *more: str) -> dict[str, Any]:
    capsys.readouterr()
    assert run(["cache", "prune", "--json", *more]) == 0
    content = json.loads(capsys.readouterr().out)
    return {name: content[name] for name in ("choices", "measurements", "runs", "searches")}


def taken(**counts: int) -> dict[str, int]:
    return {"choices": 0, "measurements": 0, "runs": 0, "searches": 0, **counts}


def test_what_serves_stays_with_its_run_its_measurements_and_its_trials(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stored.save()
    measure("run-1")
    search(stored.workload(), OK)
    search(stored.workload(), OK, source="of before")  # an earlier search of the same workload
    assert prune(capsys, "--older-than", "0") == taken()
    assert len(listed()) == 1 and len(trials.listed()[0]) == 2


def test_serving_choices_go_when_they_are_asked_for(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stored.save()
    measure("run-1")
    search(stored.workload(), OK)
    assert prune(capsys, "--serving") == taken(choices=1, measurements=1, runs=1, searches=1)
    assert listed() == [] and trials.studies() == []


def test_a_stale_choice_goes_with_its_stale_search(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stored.save(source_hash="of before")
    search(stored.workload(), OK, source="of before")
    assert prune(capsys) == taken(choices=1, runs=1, searches=1)
    with closing(studies.open_storage(f"sqlite:///{database_path()}").engine.connect()) as connection:
        assert connection.exec_driver_sql("select count(*) from trial_user_attributes").scalar() == 0
        assert connection.exec_driver_sql("pragma foreign_key_check").fetchall() == []


def test_a_dry_run_tells_the_same_and_takes_nothing(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stored.save(source_hash="of before")
    search(stored.workload(), OK, source="of before")
    before = listed(), trials.studies()
    assert prune(capsys, "--dry-run") == taken(choices=1, runs=1, searches=1)
    assert (listed(), trials.studies()) == before
    assert run(["cache", "prune", "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert "the kernel's source has changed" in said and "Would take: 1 choices, 1 runs without a result, 1 searches." in said


def test_a_search_that_goes_on_stays_and_one_without_a_finished_trial_goes(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    search(stored.workload(3), OK)
    search(stored.workload(5))
    assert prune(capsys) == taken(searches=1)
    assert [one.key["label"] for one in trials.studies()] == ["3x8 fp32"]


def test_a_search_of_a_workload_that_is_being_tuned_stays(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    search(stored.workload())
    key = key_of(stored.workload())
    with file_lock(lock_path("tune", digest([key["op"], key["workload"], key["device"], key["mode"]]))):
        assert prune(capsys) == taken()
    assert prune(capsys) == taken(searches=1)


def test_old_measurements_and_runs_that_no_choice_came_of_go(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stored.save()
    stored.save(run_id="run-2")  # takes the place of the choice of run-1
    measure("run-1")
    measure("run-2")
    assert prune(capsys, "--older-than", "36500") == taken()
    assert prune(capsys) == taken(measurements=1, runs=1)


def test_what_a_clock_ahead_has_dated_into_the_future_stays(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stored.save()
    stored.save(run_id="run-2")
    measure("run-1", "2999-01-01T00:00:00Z")
    assert prune(capsys, "--older-than", "0") == taken()


def test_choices_of_another_device_stay_unless_they_are_asked_for(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stored.save(device_key="cpu/Other/x/y", run_id="")
    search(stored.workload(), OK, device="cpu/Other/x/y")
    assert prune(capsys) == taken()
    assert prune(capsys, "--other-devices") == taken(choices=1, searches=1)


def test_of_one_op_nothing_of_others_goes(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stored.save(source_hash="of before")
    search(stored.workload())
    assert prune(capsys, "--op", "softmax") == taken()
    assert prune(capsys, "--op", "rmsnorm") == taken(choices=1, searches=1)
    assert run(["cache", "prune", "--op", "nonesuch"]) == 2


def test_where_there_is_no_store_nothing_goes_and_none_is_made(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert prune(capsys) == taken()
    assert not home.exists()


# T4 -----------------------------------------------------------------------------------------------------

T4 = {
    "type": "object",
    "required": ["schema_version", "results"],
    "properties": {
        "schema_version": {"const": "1.0.0"},
        "results": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["configuration", "times", "invalidity", "correctness"],
                "properties": {
                    "timestamp": {"type": "string"},
                    "configuration": {"type": "object"},
                    "objectives": {"type": "array"},
                    "times": {
                        "type": "object",
                        "properties": {"compilation_time": {"type": "number"}, "runtimes": {"type": "array", "items": {"type": "number"}}},
                    },
                    "invalidity": {"enum": ["timeout", "compile", "runtime", "correctness", "constraints", "correct"]},
                    "correctness": {"type": "number"},
                    "measurements": {
                        "type": "array",
                        "items": {"properties": {"name": {"type": "string"}, "value": {"type": "number"}, "unit": {"type": "string"}}},
                    },
                },
            },
        },
    },
}
"""What T4 1.0.0 asks of results, in our words: doi 10.1145/3629527.3651429, `results-schema.json` of odgaard/TuningSchema, with
`correct` of Kernel Tuner's copy."""

EVERY = [OK, *(Result(status, "said") for status in Status if status is not Status.OK)]


@pytest.mark.parametrize("places", [False, True], ids=["values", "places"])
def test_every_finished_trial_is_a_result_of_t4(home: Path, capsys: pytest.CaptureFixture[str], places: bool) -> None:
    search(stored.workload(), *EVERY, places=places)
    assert run(["cache", "export", "--format", "t4"]) == 0
    content = json.loads(capsys.readouterr().out)
    pytest.importorskip("jsonschema", reason="the dev extra has it").validate(content, T4)
    results = content["results"]
    space = registry.current().kernel("rmsnorm", KERNEL).space
    assert [one["configuration"] for one in results] == list(space.configs(stored.workload()))[: len(EVERY)]
    assert (results[0]["invalidity"], results[0]["correctness"], results[0]["times"]["runtimes"]) == ("correct", 1, [0.004])
    assert {one["invalidity"] for one in results[1:]} == {"constraints", "compile", "correctness", "runtime", "timeout"}
    assert all(one["correctness"] == 0 and one["times"]["runtimes"] == [] for one in results[1:])
    assert results[0]["problem"]["workload"] == stored.workload().key()


def test_places_in_a_space_that_has_changed_say_no_configs(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    search(stored.workload(), OK, places=True, space="of before")
    assert run(["cache", "export", "--format", "t4"]) == 1
    printed = capsys.readouterr()
    assert json.loads(printed.out)["results"] == [] and "1 trials are left out" in printed.err


HARM = ["update trial_user_attributes set value_json = '{' where key = 'result'",
        "update trial_user_attributes set value_json = '{\"status\": \"unheard of\"}' where key = 'result'",
        "update trial_params set distribution_json = '{'",
        "update study_user_attributes set value_json = '[]'"]  # fmt: skip


@pytest.mark.parametrize("harm", HARM, ids=lambda harm: harm[7:40])
def test_a_trial_that_can_not_be_read_is_left_out_and_said(
    home: Path, capsys: pytest.CaptureFixture[str], harm: str
) -> None:
    search(stored.workload(), OK)
    with open_store() as store, store.db.atomic():
        store.db.execute(harm)
    assert run(["cache", "export", "--format", "t4"]) == 1
    printed = capsys.readouterr()
    assert json.loads(printed.out)["results"] == [] and "1 trials are left out: they can't be read" in printed.err
    assert prune(capsys) == taken()


def test_a_search_that_another_process_went_on_with_since_it_was_judged_stays(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    search(stored.workload())
    (judged,) = trials.studies()
    search(stored.workload(), OK)
    monkeypatch.setattr("kernelyard.cli.cache_prune._searches", lambda entries, wanted: [judged])
    assert prune(capsys) == taken()
    assert len(trials.listed()[0]) == 1


# A clock that is set back ---------------------------------------------------------------------------------


class Clock(datetime):
    """What Optuna asks for the time: noon of a year that a test sets."""

    year_now = 2030

    @classmethod
    def now(cls, tz: Any = None) -> datetime:
        return datetime(cls.year_now, 1, 1, 12, tzinfo=tz)


def test_a_clock_set_back_between_trials_loses_none_and_changes_no_order(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("optuna.storages._rdb.storage.datetime", Clock)
    search(stored.workload(), OK)
    monkeypatch.setattr(Clock, "year_now", 1999)
    search(stored.workload(), *EVERY[1:3])
    found, _ = trials.listed()
    assert [one.completed[:4] for one in found] == ["2030", "1999", "1999"]
    kernel = registry.current().kernel("rmsnorm", KERNEL)
    study = studies.open_study(
        studies.open_storage(f"sqlite:///{database_path()}"), kernel, key_of(stored.workload()), RandomSampler(0), anew=False
    )
    assert [one.result.status for one in studies.recover(study, studies.Coding(kernel.space))] == [Status.OK, Status.BUILD_FAILED]
