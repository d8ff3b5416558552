"""The options of a search, and `replay`: what they print and how they refuse, before anything is measured."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from kernelyard.cli import run

SPACES = sorted((Path(__file__).parents[2] / "benchmarks" / "spaces").glob("rmsnorm-cpp.onepass-*.json"))


@pytest.mark.parametrize(
    "arguments, told",
    [
        (["rmsnorm", "--sampler", "annealing"], "cmaes, gp, grid"),
        (["rmsnorm", "--trials", "0"], "x>=1"),
        (["rmsnorm", "--minutes", "0"], "x>0"),
        (["rmsnorm", "--minutes", "nan"], "no number of seconds"),
        (["rmsnorm", "--patience", "0"], "x>=1"),
        (["rmsnorm", "--all"], "Leave one out"),
        (["--all", "--shape", "16x4096"], "Leave one out"),
        ([], "rmsnorm"),
    ],
)
def test_a_search_that_can_not_be_meant_is_refused(
    arguments: list[str], told: str, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["tune", *arguments, "--device", "cpu"]) == 2
    captured = capsys.readouterr()
    assert told in captured.err and captured.out == "" and "Traceback" not in captured.err


def test_a_sampler_of_optunahub_without_optunahub_says_what_to_install(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kernelyard.tuner.samplers.installed", lambda package: package != "optunahub")
    assert run(["tune", "rmsnorm", "--sampler", "hub:samplers/auto_sampler", "--device", "cpu"]) == 2
    assert "pip install optunahub" in capsys.readouterr().err


def test_compare_has_a_row_for_each_space_sampler_and_start(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--sampler", "random", "--sampler", "grid", "--seeds", "3", "--json"]
    assert run(["replay", "compare", *map(str, SPACES), *arguments]) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["schema"] == 1 and content["seeds"] == 3
    found = {(row["workload"], row["sampler"], row["start"]) for row in content["rows"]}
    assert len(found) == len(content["rows"]) == 2 * 3 * len(SPACES)
    assert all(1 <= row["lower"] <= row["median"] <= row["upper"] <= row["configs"] for row in content["rows"])


def test_compare_of_one_space_has_no_warm_start(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["replay", "compare", str(SPACES[0]), "--sampler", "grid", "--seeds", "1"]) == 0
    out = capsys.readouterr().out
    assert "cold" in out and "warm" not in out


def test_compare_refuses_what_is_no_space_and_a_sampler_that_is_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cut = tmp_path / "cut.json"
    shutil.copy(SPACES[0], cut)
    cut.write_text(cut.read_text()[:500])
    assert run(["replay", "compare", str(cut)]) == 2 and "cut.json is no recorded space" in capsys.readouterr().err
    assert run(["replay", "compare", str(SPACES[0]), "--sampler", "none"]) == 2 and "no sampler named" in capsys.readouterr().err


def test_recording_a_kernel_that_can_not_run_the_shape_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["rmsnorm", "--kernel", "triton.row", "--shape", "2x16", "--device", "cpu", "--folder", str(tmp_path)]
    assert run(["replay", "record", *words]) == 2
    assert "can't be recorded" in capsys.readouterr().err and not list(tmp_path.iterdir())
