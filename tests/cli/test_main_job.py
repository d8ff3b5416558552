"""The main job from the command line, on real C++ kernels: check, tune, explain, bench, profile, each with its stable JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kernelyard.registry.machine import identity

Yard = Callable[..., Any]
ONE = ("vector_add", "--kernel", "cpp.stream", "--device", "cpu")


@pytest.fixture(scope="module")
def yard(tmp_path_factory: pytest.TempPathFactory, builds: Path) -> Yard:
    """Runs a command in one home, expects its exit code, and returns the JSON on stdout (or, without --json, the text)."""
    folder = tmp_path_factory.mktemp("yard")
    (folder / "home").mkdir()
    (folder / "home" / "builds").symlink_to(builds)
    environment = {**os.environ, "KERNELYARD_HOME": str(folder / "home")}

    def run(*arguments: str, code: int = 0) -> Any:
        command = [sys.executable, "-m", "kernelyard", *arguments]
        done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, check=False)
        assert done.returncode == code, f"{arguments}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        assert "Traceback" not in done.stderr
        if "--json" not in arguments:
            return done.stdout
        content = json.loads(done.stdout)
        assert content["schema"] == 1
        return content

    return run


@pytest.fixture(scope="module")
def tuned(yard: Yard) -> Any:
    """A tuned workload, and what `tune --json` said of it."""
    return yard("tune", *ONE, "--shape", "4096", "--dtype", "fp32", "--trials", "2", "--save", "first", "--json")


def test_check_says_how_many_cases_were_right(yard: Yard) -> None:
    report = yard("check", *ONE, "--matrix", "smoke", "--json")
    assert report["op"] == "vector_add" and report["kernel"] == "cpp.stream"
    assert report["cases"] > 20 and report["failures"] == []


@pytest.mark.timeout(300)
def test_tune_prints_the_choice_with_its_evidence(tuned: Any) -> None:
    assert tuned["op"] == "vector_add" and tuned["run_id"] and tuned["device"] == identity("cpu").key()
    assert set(tuned["matrix"]) == {"name", "hash"}
    (workload,) = tuned["workloads"]
    assert workload["workload"]["shapes"] == {"a": [4096], "b": [4096]} and workload["workload"]["dtype"] == "float32"
    assert set(workload["choice"]) == {"kernel", "config"}
    times = workload["device_time_us"]
    assert 0 < times["low"] <= times["median"] <= times["high"]
    assert workload["eager_us"] > 0 and workload["compile_us"] > 0
    assert workload["speedup_vs_eager"] > 0 and workload["speedup_vs_compile"] > 0
    assert set(workload["trials"]) == {"ok", "wrong", "build_failed", "crashed", "timed_out", "pruned"}
    assert workload["trials"]["ok"] == 2


def test_tune_again_answers_from_the_store(yard: Yard, tuned: Any) -> None:
    again = yard("tune", *ONE, "--shape", "4096", "--dtype", "fp32", "--trials", "2", "--json")
    assert again["workloads"][0]["from_cache"]
    assert again["workloads"][0]["choice"] == tuned["workloads"][0]["choice"]
    assert again["run_id"] == tuned["run_id"]


def test_the_saved_experiment_has_rows_baselines_and_the_command(yard: Yard, tuned: Any, tmp_path_factory: pytest.TempPathFactory) -> None:
    (file,) = tmp_path_factory.getbasetemp().glob("yard0/experiments/*-first/results.json")
    content = json.loads(file.read_text())
    assert {"schema", "device", "versions", "commit", "command", "rows"} <= set(content)
    (row,) = content["rows"]
    assert row["kernel"] == tuned["workloads"][0]["choice"]["kernel"]
    times = {"device_time_us", "call_time_us", "low_us", "high_us", "baselines", "percent_of_ceiling"}
    assert {"op", "workload", "config", *times} <= set(row)
    assert "--save first" in content["command"] and "torch.eager" in row["baselines"]
    assert file.with_name("note.md").read_text().startswith("# first")


def test_the_choice_is_listed_shown_and_explained(yard: Yard, tuned: Any) -> None:
    (row,) = yard("cache", "list", "--json")["choices"]
    assert row["op"] == "vector_add" and row["stale"] == ""
    assert yard("cache", "show", "vector_add", "--json")["choices"][0]["evidence"]["finals"]
    explained = yard("explain", "vector_add", "--shape", "4096", "--dtype", "fp32", "--device", "cpu", "--json")
    assert explained["selected"] == tuned["workloads"][0]["choice"]["kernel"]
    assert "stored choice" in explained["reason"]


def test_bench_puts_kernels_side_by_side(yard: Yard) -> None:
    rows = yard("bench", *ONE, "--shape", "4096", "--dtype", "fp32", "--seconds", "0.2", "--json")["rows"]
    assert {row["kernel"] for row in rows} == {"cpp.stream", "torch.eager"}
    assert all(row["device_time_us"] > 0 and row["call_time_us"] > 0 and row["percent_of_ceiling"] > 0 for row in rows)


def test_a_kernel_that_cannot_be_timed_here_is_named_and_the_answer_is_no(yard: Yard) -> None:
    output = yard("bench", "vector_add", "--kernel", "cuda.stream", "--device", "cpu", "--shape", "4096", "--seconds", "0.2", code=1)
    assert "cuda.stream was not timed" in output


@pytest.mark.timeout(300)
def test_profile_sets_reference_and_swapped_side_by_side(yard: Yard) -> None:
    report = yard("profile", "--preset", "tiny", "--prompt", "8", "--context", "8", "--no-compile", "--device", "cpu", "--json")
    assert report["preset"] == "tiny"
    assert {(row["phase"], row["variant"]) for row in report["rows"]} >= {
        (phase, variant) for phase in ("prefill", "decode") for variant in ("reference", "swapped")
    }
    assert all({"phase", "tokens", "context", "variant", "ms", "tokens_per_s"} <= set(row) and row["ms"] > 0 for row in report["rows"])
    assert {"share", "predicted", "observed"} <= set(report["amdahl"])


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (("tune", "rmsnorm", "--trials", "0"), "--trials"),
        (("tune", "rmsnorm", "--kernel", "cpp.nothing"), "cpp.nothing"),
        (("check", "rmsnorm", "--kernel", "cpp.nothing"), "cpp.nothing"),
        (("profile", "--preset", "9t"), "9t"),
        (("profile", "--prompt", "100000"), "100000"),
        (("tune",), "OP"),
    ],
)
def test_misuse_ends_before_any_work(arguments: tuple[str, ...], names: str, capsys: pytest.CaptureFixture[str], home: Path) -> None:
    from kernelyard.cli import run

    assert run(list(arguments)) == 2
    captured = capsys.readouterr()
    assert names in captured.err and captured.out == ""
