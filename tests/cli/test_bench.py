"""`bench` from the command line: what it explains, and what it refuses before any work."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kernelyard.cli import bench_rows, run
from kernelyard.registry import choices
from kernelyard.registry.source import Source

pytestmark = pytest.mark.usefixtures("measured_home")


def test_explain_tells_ceiling_means_and_bound_of_each_kernel(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["bench", "vector_add", "--kernel", "torch.eager", "--shape", "65536", "--seconds", "0.1", "--device", "cpu", "--explain"]
    assert run(arguments) == 0
    told = capsys.readouterr().out
    assert "of its ceiling" in told and "GB/s" in told and " thread" in told and "ound" in told


def test_energy_is_a_figure_or_the_reason_why_there_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "vector_add", "--kernel", "torch.eager", "--shape", "65536", "--seconds=0.1", "--device", "cpu", "--energy"]) == 0
    told = capsys.readouterr().out
    assert "uJ a call" in told or "no energy: " in told


def test_a_kernel_that_breaks_the_contract_has_a_time_beside_those_that_keep_it(capsys: pytest.CaptureFixture[str]) -> None:
    kernels = ["--kernel", "torch.plain", "--kernel", "torch.eager"]
    arguments = ["bench", "softmax", *kernels, "--shape", "16x256", "--seconds", "0.1", "--device", "cpu", "--json"]
    assert run(arguments) == 0
    rows = {row["kernel"]: row for row in json.loads(capsys.readouterr().out)["rows"]}
    assert rows["torch.plain"]["device_time_us"] > 0 and rows["torch.eager"]["device_time_us"] > 0


def test_named_kernels_stand_beside_what_a_user_of_torch_would_call(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["bench", "softmax", "--kernel", "cpp.onepass", "--shape", "16x256", "--seconds", "0.1", "--device", "cpu", "--json"]
    assert run(arguments) == 0
    assert {row["kernel"] for row in json.loads(capsys.readouterr().out)["rows"]} == {"cpp.onepass", "torch.plain"}


def test_interrupted_it_shows_and_saves_the_workloads_that_had_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    measure, seen = bench_rows.bench_workload, list[str]()

    def second_interrupted(runner: Any, everything: Any, op: Any, workload: Any, *rest: Any) -> Any:
        if seen:
            raise KeyboardInterrupt
        seen.append(workload.label())
        return measure(runner, everything, op, workload, *rest)

    monkeypatch.setattr(bench_rows, "bench_workload", second_interrupted)
    command = ["bench", "vector_add", "--kernel", "torch.eager", "--seconds", "0.1", "--device", "cpu", "--json", "--save", "cut"]
    assert run([*command, "--shape", "4096", "--shape", "65536"]) == 130
    told = capsys.readouterr()
    (saved,) = tmp_path.glob("experiments/*-cut/results.json")
    assert [row["workload"]["shapes"]["a"] for row in json.loads(told.out)["rows"]] == [[4096]] and seen == ["4096 fp32"]
    assert len(json.loads(saved.read_text())["rows"]) == 1 and "interrupted" in told.err


@pytest.mark.parametrize(("asked", "matrix"), [("--shape=10000", "command line"), ("--matrix=held_out", "held_out/cpu")])
def test_points_that_are_held_out_are_timed_without_stored_choices_and_told_so(
    asked: str, matrix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    seen = list[str]()
    monkeypatch.setattr(choices, "_source", Source(lambda op, *rest: seen.append(op)))
    assert run(["bench", "vector_add", "--kernel", "torch.eager", asked, "--seconds", "0.1", "--device", "cpu", "--save", "it"]) == 0
    (saved,) = tmp_path.glob("experiments/*-it")
    told, note, rows = capsys.readouterr().out, (saved / "note.md").read_text(), json.loads((saved / "results.json").read_text())["rows"]
    held_out = asked == "--matrix=held_out"
    assert {row["matrix"] for row in rows} == {matrix} and f"Matrix: {matrix}" in note and bool(seen) != held_out
    assert ("held out" in note) == ("held out" in told) == held_out and choices.connected()


def test_what_is_held_out_is_not_tuned(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["tune", "vector_add", "--matrix", "held_out", "--device", "cpu"]) == 2
    assert "held out" in (told := capsys.readouterr().err) and "kernelyard bench vector_add --matrix held_out" in told
