"""Watching a run from outside: real processes, real pipes and terminals, real signals; and what the exit code says."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kernelyard.cli import run
from kernelyard.cli.tune_runs import Runs
from kernelyard.cli.tune_watching import Events, Lines, Quiet
from kernelyard.errors import MeasurementFailed
from kernelyard.registry import choices, registry
from kernelyard.registry.machine import identity
from kernelyard.registry.spec import Workload
from kernelyard.tuner.progress import Progress
from kernelyard.tuner.report import TuneReport

TOY = Path(__file__).parent / "toy"
Tune = Callable[..., "subprocess.Popen[str]"]
pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def start(toy: Path) -> Iterator[Tune]:
    """Start `kernelyard tune` in a process with the toy plugin. It hears Ctrl-C: a background job of a shell inherits that ignored."""

    def spawn(*arguments: str, **more: Any) -> subprocess.Popen[str]:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(TOY), *sys.path]), **more.pop("env", {})}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **more}
        return subprocess.Popen([sys.executable, "-m", "kernelyard", "tune", *arguments], env=environment, text=True, **pipes)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield spawn
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def fresh(toy: Path) -> None:
    """An empty store in the module's home."""
    for file in toy.glob("kernelyard.db*"):
        file.unlink()


@pytest.fixture
def answered(start: Tune) -> tuple[str, ...]:
    """What to ask for that the store has an answer to, or has after one run."""
    asked = ("twice", "--kernel", "toy.other", "--device", "cpu")
    if choices.find(workload("twice")) is None:
        start(*asked, "--quiet").communicate(timeout=120)
    assert choices.find(workload("twice")) is not None
    return asked


def events(lines: list[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in lines if line.startswith("{")]


def wait_for(process: subprocess.Popen[str], stage: str) -> list[str]:
    """The lines up to the first event of a stage."""
    seen: list[str] = []
    assert process.stderr is not None
    for line in process.stderr:
        seen.append(line)
        if f'"event": "{stage}"' in line:
            return seen
    raise AssertionError(f"no {stage} before it ended with {process.wait()}: {seen}")


def everything(terminal: int) -> bytes:
    """What was written to a terminal, until nobody writes there any more: Linux says so by an OSError."""
    told = b""
    with contextlib.suppress(OSError):
        while content := os.read(terminal, 65536):
            told += content
    os.close(terminal)
    return told


def workload(name: str) -> Workload:
    op = registry.current().op(name)
    return op.workload(op.matrices["performance/cpu"][0], "cpu")


def test_ctrl_c_once_ends_with_the_best_so_far_stored_and_said(fresh: None, start: Tune) -> None:
    process = start("many", "--device", "cpu", "--json")
    wait_for(process, "trial")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "The best so far on 20000 fp32" in err and "is stored" in err and "Traceback" not in err
    (line,) = out.splitlines()
    content = json.loads(line)
    assert content["event"] == "result" and content["interrupted"]
    (best,) = content["workloads"]
    found = choices.find(workload("many"))
    assert best["stored"] and found is not None
    assert {"kernel": found.kernel, "config": found.config} == best["choice"]


def test_every_event_is_a_line_of_json_and_the_last_is_the_result(fresh: None, start: Tune) -> None:
    out, err = start("many", "--device", "cpu", "--json").communicate(timeout=120)
    told = [*events(err.splitlines()), *events(out.splitlines())]
    assert [one["event"] for one in told][-3:] == ["finals", "done", "result"] and {one["version"] for one in told} == {1}
    trials = [one for one in told if one["event"] == "trial"]
    assert len(trials) == 6 and trials[-1]["done"] == trials[-1]["total"] == 6
    assert all(one["status"] == "ok" and one["time_us"] > 0 and one["eta_s"] is not None for one in trials)
    assert set(trials[0]["spent"]) == {"build", "check", "time"} and trials[-1]["counts"] == {"ok": 6}
    assert len(out.splitlines()) == 1 and told[-1]["schema"] == 1 and not told[-1]["interrupted"]


def test_ctrl_c_twice_ends_at_once(fresh: None, start: Tune) -> None:
    process = start("twice", "--device", "cpu", "--json", "--kernel", "toy.other")
    wait_for(process, "trial")
    process.send_signal(signal.SIGINT)
    wait_for(process, "stopping")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130 and "ended at once" in err and out == ""
    assert choices.find(workload("twice")) is None


def test_a_pipe_gets_plain_lines_and_quiet_only_the_result(start: Tune, answered: tuple[str, ...]) -> None:
    out, err = start(*answered).communicate(timeout=120)
    assert "already tuned" in err and not re.search(r"[\r\x1b]", out + err)
    quiet_out, quiet_err = start(*answered, "--quiet").communicate(timeout=120)
    assert quiet_err == "" and quiet_out == out


def test_a_terminal_without_colour_gets_none(start: Tune, answered: tuple[str, ...]) -> None:
    ours, theirs = pty.openpty()
    process = start(*answered, stdout=theirs, stderr=theirs, env={"NO_COLOR": "1", "TERM": "xterm-256color"})
    os.close(theirs)
    told = everything(ours)
    assert process.wait() == 0 and b"already tuned" in told
    assert not re.search(rb"\x1b\[(\d+;)*(3|4|9|10)\d[;m]", told)


TRIAL = Progress(
    "trial", "many", "20000 fp32", "toy.tuned", {"work": 3}, 2, 6, 7.19, "toy.tuned", 130.0, {"ok": 1, "wrong": 1},
    status="wrong", spent={"build": 12.0, "check": 1.0, "time": 3.4},
)  # fmt: skip


def shown(events: list[Progress], monkeypatch: pytest.MonkeyPatch, columns: int) -> bytes:
    """What a terminal gets of them."""
    ours, theirs = pty.openpty()
    monkeypatch.setenv("COLUMNS", str(columns))
    with open(theirs, "w") as terminal, monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", terminal)
        lines = Lines()
        for event in events:
            lines(event)
        lines.close()
    return everything(ours)


def test_a_trial_tells_how_far_how_long_the_best_and_what_the_time_went_to(monkeypatch: pytest.MonkeyPatch) -> None:
    told = shown([TRIAL], monkeypatch, 300).decode()
    words = ("[2/6]", "ETA 2 min", "best 7.19 us toy.tuned", "1 ok 1 wrong", "building 12 s checking 1 s timing 3 s")
    assert all(word in told for word in (*words, "wrong toy.tuned work=3"))


def test_a_line_of_a_terminal_is_cut_where_it_ends_and_is_written_over(monkeypatch: pytest.MonkeyPatch) -> None:
    told = shown([TRIAL], monkeypatch, 40).decode()
    assert told.startswith("\r[2/6] many") and told.endswith("\r") and "\n" not in told and "\x1b" not in told
    assert max(map(len, told.split("\r"))) < 40


def test_a_dumb_terminal_gets_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    told = shown([TRIAL], monkeypatch, 300).decode()
    assert told.count("\n") == 1 and not told.startswith("\r")


def test_a_trial_that_failed_is_an_event_with_its_reason_and_the_tail_of_its_output(capsys: pytest.CaptureFixture[str]) -> None:
    Events()(Progress("trial", "many", "8", status="crashed", reason="while checking: abort (SIGABRT)", log="stack\nsmashed"))
    (event,) = events(capsys.readouterr().err.splitlines())
    assert (event["event"], event["status"], event["log"]) == ("trial", "crashed", "stack\nsmashed") and "SIGABRT" in event["reason"]


def test_an_op_that_can_not_be_measured_is_told_and_the_others_go_on(capsys: pytest.CaptureFixture[str]) -> None:
    runs, report = Runs(Quiet(), as_json=True, several=True, save=None), TuneReport("twice", "run", identity("cpu"), "", "", ())
    with runs.one():
        raise MeasurementFailed("the clock stands still.")
    with runs.one():
        runs.add(report)
    assert runs.end() == 1
    captured = capsys.readouterr()
    content = json.loads(captured.out)
    assert content["failed"] == ["the clock stands still."] and [one["op"] for one in content["runs"]] == ["twice"]
    assert "the clock stands still" in captured.err


def test_where_every_config_is_wrong_the_reference_is_chosen_and_the_answer_is_no(toy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["tune", "hopeless", "--device", "cpu", "--json", "--quiet"]) == 1
    content = json.loads(capsys.readouterr().out)
    (one,) = content["workloads"]
    assert one["choice"]["kernel"] == "toy.eager" and one["all_failed"] and not one["stored"]


def test_an_empty_space_that_was_asked_for_is_bad_input_and_an_event(toy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["tune", "empty", "--kernel", "toy.tuned", "--device", "cpu", "--json"]) == 2
    captured = capsys.readouterr()
    (event,) = events(captured.err.splitlines())
    assert event["event"] == "error" and event["exit_code"] == 2 and "forbids 4 of 6" in event["message"] and captured.out == ""
