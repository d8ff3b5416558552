"""Kills, crowds and Ctrl-C: nothing finished is lost, nothing is tried twice, everybody agrees."""

from __future__ import annotations

import importlib
import json
import signal
import sqlite3
import subprocess
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from kernelyard.registry import choices as registry_choices
from kernelyard.registry import registry
from kernelyard.registry.spec import config_key
from kernelyard.tuner.limits import Limits
from kernelyard.tuner.progress import Progress
from kernelyard.tuner.report import Stopped, TuneReport
from kernelyard.tuner.tune import tune

Start = Callable[[str], "subprocess.Popen[str]"]


def trials(home: Path, op: str = "many") -> list[tuple[int, str, Any]]:
    """(trial id, state, value) of the op's studies, in order."""
    sql = """select t.trial_id, t.state, v.value from trials t join studies s on s.study_id = t.study_id
             left join trial_values v on v.trial_id = t.trial_id where s.study_name like ? order by t.trial_id"""
    with closing(sqlite3.connect(home / "kernelyard.db")) as connection:
        return connection.execute(sql, (f"{op} %",)).fetchall()


def finish(name: str, seen: list[Progress]) -> TuneReport:
    op = registry.current().op(name)
    return tune(op, [op.workload(op.matrices["performance/cpu"][0], "cpu")], "cpu", limits=quick(), progress=seen.append)


def quick() -> Limits:
    return importlib.import_module("toy_plugin").QUICK  # type: ignore[no-any-return]


def wait_for_trials(process: subprocess.Popen[str], count: int) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        count -= line.strip() == "trial"
        if count == 0:
            return
    raise AssertionError(f"the tuner ended early with {process.wait()}")


@pytest.fixture
def fresh(toy: Path) -> Path:
    """An empty store in the module's home."""
    for file in toy.glob("kernelyard.db*"):
        file.unlink()
    return toy


def test_after_kill_9_the_rest_is_tried_and_nothing_twice(fresh: Path, start: Start) -> None:
    process = start("many")
    wait_for_trials(process, 3)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    before = [row for row in trials(fresh) if row[1] == "COMPLETE"]
    assert len(before) >= 3
    seen: list[Progress] = []
    report = finish("many", seen)
    after = [row for row in trials(fresh) if row[1] == "COMPLETE"]
    assert after[: len(before)] == before and len(after) == 6
    assert not [row for row in trials(fresh) if row[1] in ("RUNNING", "WAITING")]
    tried = [config_key(event.config) for event in seen if event.stage == "trial"]
    assert len(tried) == len(set(tried)) == 6 - len(before)
    assert report.workloads[0].evidence["trials"]["ok"] == 6


def test_two_at_once_both_finish_and_agree(fresh: Path, start: Start) -> None:
    processes = [start("many") for _ in range(2)]
    outputs = [process.communicate(timeout=100)[0].splitlines() for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    one, other = (json.loads(lines[-1]) for lines in outputs)
    assert one["run_id"] == other["run_id"] and one["workloads"][0]["choice"] == other["workloads"][0]["choice"]
    assert sorted("trial" in lines for lines in outputs) == [False, True]
    assert len([row for row in trials(fresh) if row[1] == "COMPLETE"]) == 6


def test_ctrl_c_stores_the_best_so_far_and_the_next_run_goes_on(fresh: Path) -> None:
    seen: list[Progress] = []

    def interrupt(event: Progress) -> None:
        seen.extend([event] if event.stage == "trial" else [])
        if len(seen) == 2 and event.stage == "trial":
            raise KeyboardInterrupt

    op = registry.current().op("many")
    with pytest.raises(Stopped, match="2 finished trials are kept") as caught:
        tune(op, [op.workload(op.matrices["performance/cpu"][0], "cpu")], "cpu", trials=3, limits=quick(), progress=interrupt)
    assert caught.value.exit_code == 130
    assert [dict(event.config) for event in seen] == [{"work": 3}, {"work": 5}]
    (best,) = caught.value.report.workloads
    found = registry_choices.find(best.workload)
    assert best.stored and found is not None and (found.kernel, found.config) == (best.choice.kernel, best.choice.config)
    assert "is stored" in str(caught.value) and best.evidence["interrupted"]
    after: list[Progress] = []
    tune(op, [op.workload(op.matrices["performance/cpu"][0], "cpu")], "cpu", trials=3, limits=quick(), progress=after.append)
    tried = [config_key(event.config) for event in (*seen, *after) if event.stage == "trial"]
    assert len(tried) == len(set(tried)) == 3


def test_ctrl_c_does_not_replace_a_choice_that_holds(fresh: Path) -> None:
    whole = finish("many", []).workloads[0].choice

    def interrupt(event: Progress) -> None:
        if event.stage == "trial":
            raise KeyboardInterrupt

    op = registry.current().op("many")
    with pytest.raises(Stopped, match="a valid choice stands") as caught:
        tune(op, [op.workload(op.matrices["performance/cpu"][0], "cpu")], "cpu", force=True, limits=quick(), progress=interrupt)
    (best,) = caught.value.report.workloads
    found = registry_choices.find(best.workload)
    assert not best.stored and found is not None and found.run_id == whole.run_id


def test_ctrl_c_before_anything_was_right_stores_nothing(fresh: Path) -> None:
    def interrupt(event: Progress) -> None:
        raise KeyboardInterrupt

    op = registry.current().op("many")
    with pytest.raises(Stopped, match="0 finished trials are kept") as caught:
        tune(op, [op.workload(op.matrices["performance/cpu"][0], "cpu")], "cpu", limits=quick(), progress=interrupt)
    assert caught.value.report.workloads == ()
