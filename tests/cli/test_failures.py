"""From a failure to its cause on the command line: check gives ids, repro takes them up, boundary and --sanitize answer with exit codes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from kernelyard.cli import run
from kernelyard.cli.watching import Watching, line
from kernelyard.registry import registry
from kernelyard.store.failures import find
from kernelyard.verify.boundary import Row
from tests.devices import on_each_device

CHECK = ("check", "rmsnorm", "--shape", "2x5", "--dtype", "fp32", "--kernel")

Answer = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def planted(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("KERNELYARD_EXTRA_PLUGINS", "tests.wrong_kernels.planted:plugin")
    registry.reset()
    yield
    registry.reset()


@pytest.fixture
def answer(capsys: pytest.CaptureFixture[str]) -> Answer:
    """Exit code, stdout and stderr of a command."""

    def ask(*arguments: str) -> tuple[int, str, str]:
        code = run(list(arguments))
        captured = capsys.readouterr()
        assert "Traceback" not in captured.err + captured.out
        return code, captured.out, captured.err

    return ask


@on_each_device
def test_a_failure_gets_an_id_that_repro_takes_up_until_it_is_gone(
    device: str, answer: Answer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, out, _ = answer(*CHECK, "planted.mask_off_by_one", "--device", device)
    assert code == 1
    id = out.splitlines()[-1].split()[2]
    assert out.splitlines()[-1] == f"kernelyard repro {id} writes the smallest script that shows it"
    assert f"  {id}  wrong at 2x5 fp32 random" in out
    assert find(id).kernel == "planted.mask_off_by_one"
    monkeypatch.setenv("PLANTED_FIXED", "1")
    code, out, _ = answer("repro", id, "--output", str(tmp_path / "fault.py"))
    assert code == 1 and f"{id} does not show any more" in out and not (tmp_path / "fault.py").exists()


@on_each_device
def test_repro_says_what_it_wrote_and_ran(device: str, answer: Answer, tmp_path: Path) -> None:
    _, out, _ = answer(*CHECK, "planted.eps_outside_the_root", "--device", device, "--json")
    ids: list[Any] = [failure["id"] for failure in json.loads(out)["failures"]]
    assert len(set(ids)) == len(ids) > 1
    code, out, err = answer("repro", ids[0], "--output", str(tmp_path / "fault.py"), "--json")
    told = json.loads(out)
    assert code == 0 and told["reproduced"] and told["fallback_right"] and told["dims"] == [1, 1] and told["lines"] < 30
    text = (tmp_path / "fault.py").read_text()
    assert text.count("\n") == told["lines"] and "torch.isclose" in text, "a value that differs needs no checker to be seen"
    assert "shrinking" in err
    assert exit_code(tmp_path / "fault.py", PLANTED_FIXED="1") == 0


def exit_code(script: Path, **environment: str) -> int:
    command = [sys.executable, str(script)]
    everything = {**os.environ, "PYTHONPATH": os.pathsep.join([os.getcwd(), *sys.path]), **environment}
    return subprocess.run(command, env=everything, capture_output=True, check=False, cwd="/").returncode


def test_an_unknown_id_is_misuse(answer: Answer) -> None:
    code, out, err = answer("repro", "00000000")
    assert code == 2 and out == "" and "no failure named '00000000'" in err


def test_failures_that_say_the_same_are_one_line(answer: Answer) -> None:
    code, out, _ = answer(*CHECK, "planted.no_such_function", "--device", "cpu")
    assert code == 1 and out.count("names nothing") == 1 and "more cases: planted.no_such_function has no code" in out


def test_a_home_that_can_not_be_written_takes_no_verdict_away(answer: Answer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("KERNELYARD_HOME", str(tmp_path / "file"))
    code, out, err = answer(*CHECK, "planted.mask_off_by_one", "--device", "cpu", "--json")
    assert code == 1 and json.loads(out)["failures"][0]["status"] == "wrong"
    assert "Kernels are built in a temporary folder" in err and "the failures could not be kept" in err


def test_boundary_says_no_where_a_declaration_is_too_wide(answer: Answer, monkeypatch: pytest.MonkeyPatch) -> None:
    wide = Row("planted.too_wide", "cols", "0..4096", "right to 1000, wrong from 1001", "too wide", 12, "7x4096 float32: wrong")
    monkeypatch.setattr("kernelyard.verify.boundary.boundary", lambda *_: [wide])
    code, out, _ = answer("boundary", "rmsnorm", "--kernel", "planted.too_wide", "--device", "cpu", "--json")
    assert code == 1 and json.loads(out)["rows"] == [asdict(wide)]


def test_too_narrow_alone_is_no_failure(answer: Answer) -> None:
    code, out, _ = answer("boundary", "rmsnorm", "--kernel", "planted.too_narrow", "--device", "cpu")
    assert code == 0 and "too narrow" in out and "right at 513, 514, 1024, 1025 too" in out


def test_a_sanitizer_on_a_cpu_is_unsupported_and_the_answer_is_no(answer: Answer) -> None:
    code, out, _ = answer("check", "rmsnorm", "--kernel", "cpp.onepass", "--sanitize", "memcheck", "--device", "cpu", "--json")
    (kernel,) = json.loads(out)["kernels"]
    assert code == 1 and kernel["status"] == "unsupported" and not kernel["ok"] and "this device is cpu" in kernel["reason"]
    code, out, err = answer("check", "--sanitize", "rmsnorm")
    assert code == 2 and "The option goes after OP" in err


def test_progress_tells_what_is_done_and_left(capsys: pytest.CaptureFixture[str]) -> None:
    assert line("triton.row", 100, 400, 30.0) == "triton.row: 100 of 400 cases, about 90 s left"
    assert line("triton.row", 1, 401, 3.0) == "triton.row: 1 of 401 cases, about 20 min left"
    watching = Watching("triton.row")
    watching.seen(1, 2)
    assert capsys.readouterr().err == "", "a check of a moment needs no progress"
    watching._live._next = 0.0
    watching.seen(1, 2)
    watching.close()
    assert capsys.readouterr().err.startswith("triton.row: 1 of 2 cases, about ")
