"""A worker survives what a job does to its process, and says what happened."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kernelyard.registry.spec import Status
from kernelyard.verify.isolation import LOG_BYTES, MemoryLimit, Outcome, Worker, ending

JOBS = "tests.verify.jobs"


@pytest.fixture(scope="module")
def shared() -> Iterator[Worker]:
    with Worker() as worker:
        yield worker


def run(worker: Worker, job: str, timeout_s: float = 60, **payload: Any) -> Outcome:
    return worker.run(f"{JOBS}:{job}", payload, timeout_s)


def wait_until_dead(pid: int) -> None:
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    ready, _, _ = select.select([descriptor], [], [], 30)
    os.close(descriptor)
    assert ready, f"process {pid} is still alive"


def test_value_comes_back_and_one_child_serves_several_jobs(shared: Worker) -> None:
    first, second = run(shared, "echo", x=[1, 2.5, "three"]), run(shared, "echo")
    assert first.status is Status.OK and first.value is not None and second.value is not None
    assert first.value["x"] == [1, 2.5, "three"]
    assert first.value["pid"] == second.value["pid"] == shared.pid != os.getpid()


def test_what_a_job_prints_is_in_the_log_and_not_on_our_stdout(shared: Worker, capfd: pytest.CaptureFixture[str]) -> None:
    outcome = run(shared, "printing")
    assert sorted(outcome.log.splitlines()) == ["from a grandchild", "to stderr", "to stdout"]
    assert capfd.readouterr() == ("", "")


def test_segfault_is_named_with_the_log_and_the_next_job_runs(shared: Worker) -> None:
    outcome = run(shared, "segfault")
    assert outcome.status is Status.CRASHED
    assert outcome.reason == "segmentation fault (SIGSEGV)"
    assert "about to crash" in outcome.log and "in segfault" in outcome.log
    assert run(shared, "echo").status is Status.OK


@pytest.mark.parametrize(("how", "code"), [("os", 7), ("os", 0), ("sys", 3)])
def test_exit_by_the_job_is_a_crash_with_its_code(shared: Worker, how: str, code: int) -> None:
    outcome = run(shared, "leave", how=how, code=code)
    assert (outcome.status, outcome.reason) == (Status.CRASHED, f"the kernel ended the process with code {code}")


@pytest.mark.skipif(sys.platform != "linux", reason="watches processes through pidfd")
@pytest.mark.parametrize("job", ["hang", "hold_the_interpreter_lock"])
def test_time_limit_kills_the_job_and_all_that_it_started(shared: Worker, tmp_path: Path, job: str) -> None:
    outcome = run(shared, job, timeout_s=2, pids=str(tmp_path / "pids"))
    assert (outcome.status, outcome.reason) == (Status.TIMED_OUT, "still running after 2 s; killed")
    for pid in (tmp_path / "pids").read_text().split():
        wait_until_dead(int(pid))
    assert run(shared, "echo").status is Status.OK


def test_flood_of_output_ends_with_a_bounded_log(shared: Worker) -> None:
    outcome = run(shared, "flood", timeout_s=0.5)
    assert outcome.status is Status.TIMED_OUT
    assert 0 < len(outcome.log) <= LOG_BYTES


@pytest.mark.parametrize(
    ("job", "status", "words"),
    [
        ("raise_build_failed", Status.BUILD_FAILED, "did not compile error: expected ';'"),
        ("raise_unsupported", Status.UNSUPPORTED, "no AVX-512 here"),
        ("raise_value_error", Status.CRASHED, "ValueError: bad tile"),
        ("nonsense", Status.CRASHED, "TypeError: Object of type object is not JSON serializable"),
        ("no_such_job", Status.CRASHED, "AttributeError: module 'tests.verify.jobs' has no attribute 'no_such_job'"),
    ],
)
def test_exception_becomes_a_status_and_words_and_the_child_lives(shared: Worker, job: str, status: Status, words: str) -> None:
    before = run(shared, "echo").value
    outcome = run(shared, job)
    assert (outcome.status, outcome.reason, outcome.value) == (status, words, None)
    assert run(shared, "echo").value == before


def test_job_that_closes_its_pipes_is_a_crash_and_does_not_hang_us(shared: Worker) -> None:
    outcome = run(shared, "close_everything")
    assert outcome.status is Status.CRASHED


@pytest.mark.skipif(sys.platform != "linux", reason="Linux alone tells")
def test_a_process_that_is_going_is_told_from_one_that_lives_on() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # gone, but nobody has asked for its code
        assert ending(process.pid)
    assert not ending(os.getpid()) and not ending(process.pid)


def test_memory_limit_makes_a_greedy_job_fail_by_itself() -> None:
    with Worker(memory=MemoryLimit(data_bytes=2 << 30)) as worker:
        outcome = run(worker, "fill_memory")
        assert (outcome.status, outcome.reason) == (Status.CRASHED, "out of memory") and "MemoryError" in outcome.log
        assert worker.pid is None  # what the job held may still be held


def test_what_is_only_reserved_does_not_count_towards_the_limit() -> None:
    with Worker(memory=MemoryLimit(data_bytes=2 << 30)) as worker:
        assert run(worker, "reserve_memory").status is Status.OK


@pytest.mark.skipif(sys.platform != "linux", reason="Linux alone tells how much memory is resident")
def test_a_job_that_takes_more_than_is_watched_for_is_killed_and_the_figures_are_told() -> None:
    with Worker(memory=MemoryLimit(resident_bytes=256 << 20)) as worker:
        outcome = run(worker, "fill_memory_slowly")
        assert outcome.status is Status.CRASHED and outcome.reason.startswith("out of memory: ") and "of 0.3 GB" in outcome.reason
        assert "took what it could" in outcome.log
        assert run(worker, "echo").status is Status.OK


def test_a_reply_without_end_costs_no_memory_of_ours(shared: Worker) -> None:
    outcome = run(shared, "flood_every_pipe")
    assert outcome.status is Status.CRASHED
    assert run(shared, "echo").status is Status.OK


def test_a_process_that_a_dead_job_left_behind_does_not_hold_us(shared: Worker) -> None:
    outcome = run(shared, "leave_a_child_and_crash")
    assert (outcome.status, outcome.reason) == (Status.CRASHED, "the kernel ended the process with code 5")


def test_words_that_a_job_leaves_with_are_in_the_log(shared: Worker) -> None:
    outcome = run(shared, "leave", how="sys", code="no tile fits")
    assert outcome.reason == "the kernel ended the process with code 1" and outcome.log == "no tile fits"


def test_environment_reaches_the_child(tmp_path: Path) -> None:
    with Worker(env={"TRITON_INTERPRET": "1"}, log=tmp_path / "log") as worker:
        assert run(worker, "environment", name="TRITON_INTERPRET").value == {"value": "1"}
        run(worker, "raise_value_error")
    assert "ValueError: bad tile" in (tmp_path / "log").read_text()


def test_close_leaves_no_child() -> None:
    with Worker() as worker:
        run(worker, "echo")
        pid = worker.pid
    assert pid is not None and worker.pid is None
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


PARENT = """
import signal, sys
from kernelyard.verify.isolation import Worker
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job of a shell inherits it ignored
with Worker() as worker:
    worker.run("tests.verify.jobs:" + sys.argv[1], {"pids": sys.argv[2]}, 600)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="watches processes through pidfd")
@pytest.mark.parametrize("blow", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("job", ["hang", "hold_the_interpreter_lock"])
def test_death_of_the_parent_ends_its_children(tmp_path: Path, job: str, blow: signal.Signals) -> None:
    os.mkfifo(tmp_path / "pids")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", PARENT, job, str(tmp_path / "pids")]
    with subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL) as parent:
        pids = (tmp_path / "pids").read_text().split()
        parent.send_signal(blow)
        parent.wait(30)
    for pid in pids:
        wait_until_dead(int(pid))
