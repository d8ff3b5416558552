"""Tuning from end to end, on kernels that misbehave: statuses, the winner, the store, and what is answered from it."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kernelyard.errors import UnknownName, UsageError
from kernelyard.registry import choices as registry_choices
from kernelyard.registry import registry
from kernelyard.registry.op import Op
from kernelyard.registry.registry import Registry
from kernelyard.registry.spec import Status, Workload
from kernelyard.store import choices
from kernelyard.store.database import open_store
from kernelyard.tuner.limits import Limits
from kernelyard.tuner.progress import Progress
from kernelyard.tuner.report import TuneReport
from kernelyard.tuner.tune import tune


def quick() -> Limits:
    return importlib.import_module("toy_plugin").QUICK  # type: ignore[no-any-return]


def workload(op: Op) -> Workload:
    return op.workload(op.matrices["performance/cpu"][0], "cpu")


def run(name: str, **more: Any) -> TuneReport:
    op = registry.current().op(name)
    return tune(op, [workload(op)], "cpu", matrix=op.matrix("performance", "cpu"), limits=quick(), **more)


@pytest.fixture(scope="module")
def events() -> list[Progress]:
    return []


@pytest.fixture(scope="module")
def tuned(toy: Path, events: list[Progress]) -> TuneReport:
    """One run over every misbehaviour."""
    return run("twice", progress=events.append)


def test_every_misbehaviour_has_its_status_and_the_search_goes_on(tuned: TuneReport) -> None:
    (report,) = tuned.workloads
    # right twice and toy.other; raise, segfault and exit crash; six combinations break the constraint.
    assert report.evidence["trials"] == {"ok": 3, "wrong": 1, "build_failed": 1, "crashed": 3, "timed_out": 1, "pruned": 6}


def test_a_fast_right_config_wins_and_no_wrong_one_is_timed(tuned: TuneReport, events: list[Progress]) -> None:
    (report,) = tuned.workloads
    assert report.choice.kernel in ("toy.tuned", "toy.other") and report.choice.config in ({"behaviour": "right", "work": 1}, {})
    assert {entry["config"].get("behaviour", "right") for entry in report.evidence["finals"]} == {"right"}
    assert report.evidence["speedup_vs_eager"] > 1


def test_the_default_config_is_trial_0(tuned: TuneReport, events: list[Progress]) -> None:
    first = next(event for event in events if event.kernel == "toy.tuned")
    assert first.config == {"behaviour": "right", "work": 20}


def test_progress_counts_and_ends(tuned: TuneReport, events: list[Progress]) -> None:
    assert [event.stage for event in events][-2:] == ["finals", "done"]
    last_trial = [event for event in events if event.stage == "trial"][-1]
    assert last_trial.done == last_trial.total == 9 and last_trial.best_us is not None
    assert sum(last_trial.counts.values()) == 9


def test_the_choice_is_stored_with_its_evidence_and_holds(tuned: TuneReport) -> None:
    op = registry.current().op("twice")
    found = registry_choices.find(workload(op))
    assert found is not None and found.kernel == tuned.workloads[0].choice.kernel
    assert registry_choices.holds(found, op, registry.current())
    with open_store() as store:
        assert [row["id"] for row in store.runs()] == [tuned.run_id]
        assert {row["mode"] for row in store.measurements(tuned.run_id)} == {"device", "call"}


def test_json_has_the_stable_names(tuned: TuneReport) -> None:
    content = json.loads(json.dumps(tuned.to_json(), allow_nan=False))
    assert content["schema"] == 1 and {"op", "run_id", "device", "matrix", "workloads"} <= set(content)
    assert content["matrix"]["name"] == "performance/cpu" and content["matrix"]["hash"]
    (row,) = content["workloads"]
    names = "workload choice device_time_us eager_us compile_us speedup_vs_eager speedup_vs_compile trials"
    assert set(names.split()) <= set(row)
    assert set(row["device_time_us"]) == {"median", "low", "high"} and set(row["choice"]) == {"kernel", "config"}
    assert {"shapes", "dtype"} <= set(row["workload"]) and row["compile_us"] is None


ASK_AGAIN = """
import sys
from kernelyard.registry import registry
from kernelyard.tuner.tune import tune
op = registry.current().op("twice")
report = tune(op, [op.workload(op.matrices["performance/cpu"][0], "cpu")], "cpu")
print(report.from_cache, report.workloads[0].choice.kernel, [m for m in ("torch", "optuna") if m in sys.modules])
"""


def test_a_second_run_answers_from_the_store_without_torch_or_optuna(tuned: TuneReport) -> None:
    toy = str(Path(__file__).parent / "toy")
    code = f"import sys; sys.path.insert(0, {toy!r})\n{ASK_AGAIN}"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.split(maxsplit=2) == ["True", tuned.workloads[0].choice.kernel, "[]\n"], told.stderr


def test_asking_for_fewer_trials_or_another_kernel_that_was_searched_is_answered_too(tuned: TuneReport) -> None:
    assert run("twice", trials=3).from_cache
    assert run("twice", kernels=[tuned.workloads[0].choice.kernel]).from_cache


def test_a_damaged_choice_is_tuned_again_from_the_kept_trials(tuned: TuneReport, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_store() as store:
        store.db.execute("update choices set config = '{\"work\": 12'")
        store.db.commit()
    monkeypatch.setattr(choices, "_warned", set())
    seen: list[Progress] = []
    again = run("twice", progress=seen.append)
    assert not again.from_cache and [event.stage for event in seen] == ["finals", "done"]
    assert again.workloads[0].evidence["trials"] == tuned.workloads[0].evidence["trials"]


def test_where_every_config_fails_the_reference_is_chosen_says_why_and_nothing_is_stored(toy: Path) -> None:
    report = run("hopeless")
    assert report.all_failed
    (one,) = report.workloads
    assert one.choice.kernel == "toy.eager" and "failed" in one.choice.reason and not one.stored
    assert one.evidence["trials"] == {"ok": 0, "wrong": 1, "build_failed": 1, "crashed": 1, "timed_out": 0, "pruned": 0}
    assert registry_choices.find(one.workload) is None


def test_an_op_with_nothing_but_its_reference_is_tuned_to_it(toy: Path) -> None:
    report = run("plain")
    assert report.workloads[0].choice.kernel == "toy.eager" and not report.all_failed


@pytest.mark.parametrize("trials", [0, -1])
def test_a_budget_below_one_is_refused(toy: Path, trials: int) -> None:
    with pytest.raises(UsageError, match="at least 1"):
        run("many", trials=trials)


def test_an_unknown_kernel_is_refused_with_those_that_exist(toy: Path) -> None:
    with pytest.raises(UnknownName, match=r"toy\.tuned"):
        run("many", kernels=["toy.none"])


def test_a_storage_that_is_no_url_is_refused(toy: Path) -> None:
    with pytest.raises(UsageError, match="no database URL"):
        run("many", storage="not a url")


def test_statuses_are_the_counted_ones() -> None:
    from kernelyard.tuner.report import COUNTED

    assert set(COUNTED) == set(Status) - {Status.UNSUPPORTED}


def test_registry_is_the_real_one(toy: Path) -> None:
    assert isinstance(registry.current(), Registry) and not [p for p in registry.current().problems if "toy" in p.plugin]
