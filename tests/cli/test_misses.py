"""`cache misses`, and what a captured file is tuned in."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from kernelyard.cli import run, tune_order
from kernelyard.cli.tune_order import ordered
from kernelyard.registry import registry
from kernelyard.registry.machine import identity
from kernelyard.registry.matrix import Matrix, Point
from kernelyard.registry.registry import Registry
from kernelyard.registry.spec import Choice, Miss, Missed, Workload
from kernelyard.store.database import open_store
from kernelyard.store.misses import keep

RMSNORM = registry.current().op("rmsnorm")
ASKED = RMSNORM.workload(Point((3, 8), "float32"))
RUN = "kernelyard tune rmsnorm --shape {} --dtype float32 --device cpu"
KERNEL = "torch.eager"


def miss(workload: Workload = ASKED, words: str = "3x8") -> Miss:
    key, command = identity("cpu").key(), RUN.format(words) if words else ""
    return Miss("rmsnorm", workload.label(), workload.key(), key, Missed.UNTUNED, "cpp.onepass", "not tuned", command)


def choice(workload: Workload) -> Choice:
    everything: Registry = registry.current()
    kernel = everything.kernel("rmsnorm", KERNEL)
    versions: Mapping[str, str] = everything.builder(kernel.backend).versions()
    return Choice("rmsnorm", workload.key(), identity("cpu").key(), "device", KERNEL, {}, RMSNORM.contract_hash(), kernel.source_hash(),
                  kernel.space.hash(), versions)  # fmt: skip


def store(workload: Workload, us: float) -> None:
    with open_store() as opened:
        opened.save_choice(choice(workload), workload, {"device_time_us": {"median": us, "low": us, "high": us}})


def listed(capsys: pytest.CaptureFixture[str], *more: str) -> dict[str, Any]:
    assert run(["cache", "misses", "--json", *more]) == 0
    content: dict[str, Any] = json.loads(capsys.readouterr().out)
    return content


def test_misses_are_listed_with_one_command_for_all_shapes_of_an_op(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = RMSNORM.workload(Point((5, 8), "float32"))
    keep([miss(), miss(other, "5x8"), miss(RMSNORM.workload(Point((7, 8), "float32", "transposed")), "")])
    assert run(["cache", "misses"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert RUN.format("3x8 --shape 5x8") in lines
    assert lines[-1] == "1 have strides that --shape can't say: run the model inside kernelyard.capture(NAME)."


def test_misses_of_another_op_are_left_out_when_one_is_asked_for(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keep([miss()])
    assert [one["workload"] for one in listed(capsys, "--op", "rmsnorm")["misses"]] == ["3x8 fp32"]
    assert listed(capsys, "--op", "softmax")["misses"] == []


def test_what_was_tuned_since_is_left_out_and_counted(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keep([miss()])
    store(ASKED, 1.0)
    content = listed(capsys)
    assert content["misses"] == [] and content["tuned_since"] == 1


def test_without_misses_it_says_so(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["cache", "misses"]) == 0
    assert capsys.readouterr().out.startswith("No misses are kept")


# The order of a captured file -------------------------------------------------------------------------

POINTS = (Point((1, 8), "float32"), Point((4, 8), "float32"))


def order(matrices: list[Matrix]) -> tuple[list[str], str]:
    found, by = ordered(registry.current(), matrices, "cpu")
    return [workload.label() for _, workloads in found for workload in workloads], by


def test_a_matrix_that_nobody_counted_is_tuned_in_its_own_order(home: Path) -> None:
    assert order([Matrix("m", "rmsnorm", POINTS)]) == (["1x8 fp32", "4x8 fp32"], "")


def test_without_stored_times_calls_times_bytes_decide_over_ops_too(home: Path) -> None:
    few, many = Matrix("m", "rmsnorm", POINTS, (1, 1)), Matrix("m", "vector_add", (Point((8,), "float32"),), (1000,))
    labels, by = order([few, many])
    assert labels == ["8 fp32", "4x8 fp32", "1x8 fp32"]
    assert by == "count x bytes of the cost model (0 of 3 points have a stored time)"


def test_stored_times_decide_where_every_point_has_one(home: Path) -> None:
    for point, us in zip(POINTS, (9.0, 1.0), strict=True):
        store(RMSNORM.workload(point), us)
    assert order([Matrix("m", "rmsnorm", POINTS, (1, 8))]) == (["1x8 fp32", "4x8 fp32"], "count x stored time")
    assert order([Matrix("m", "rmsnorm", POINTS, (1, 10))]) == (["4x8 fp32", "1x8 fp32"], "count x stored time")


def test_the_matrix_keeps_its_hash_whatever_the_order(home: Path) -> None:
    matrix = Matrix("m", "rmsnorm", POINTS, (1, 100))
    ((kept, _),), _ = tune_order.ordered(registry.current(), [matrix], "cpu")
    assert kept.hash == matrix.hash


def test_tune_without_an_op_needs_a_file(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["tune"]) == 2
    assert "no op was named. There are: " in capsys.readouterr().err
