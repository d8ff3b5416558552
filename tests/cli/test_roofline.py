"""`roofline`: ceilings kept or measured, kernels from stored times, and what it says where there are none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kernelyard.cli import run
from kernelyard.measure import ceiling_file
from kernelyard.measure.measured import PROTOCOL
from kernelyard.registry import registry
from kernelyard.registry.machine import identity
from kernelyard.registry.op import Op
from kernelyard.registry.spec import Timing, Workload
from kernelyard.store.database import open_store
from kernelyard.store.records import Measurement, Run

KEY = identity("cpu").key()
RATES = {"device_key": KEY, "measured_at": "2026-01-02T03:04:05Z", "copy_gbps": 10.0, "read_gbps": 12.0, "peak_gbps": 100.0,
         "matrix_tflops": {"float32": 0.2}, "spreads": {"copy": 0.01, "read": 0.02, "float32": 0.03}}  # fmt: skip


@pytest.fixture
def op() -> Op:
    return registry.current().op("vector_add")


@pytest.fixture
def workload(op: Op) -> Workload:
    return op.workload(op.matrix("performance", "cpu").points[1], "cpu")


@pytest.fixture(autouse=True)
def kept(home: Path) -> None:
    ceiling_file.update(KEY, {"rates": RATES})


def store(workload: Workload, run_id: str, *times: tuple[str, float], **more: str) -> None:
    values = {"protocol": PROTOCOL, "device_key": KEY, "mode": "device"} | more
    with open_store() as opened:
        opened.save_run(Run(run_id, "tune", "t", "c", identity("cpu")))
        opened.save_measurements(
            Measurement(run_id, "vector_add", workload.key(), workload.label(), kernel, {}, values["device_key"],
                        Timing(us, us, us, values["mode"], "monotonic", 3, 9), "finals", values["protocol"])
            for kernel, us in times
        )  # fmt: skip


def asked(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> dict[str, object]:
    assert run(["roofline", *arguments, "--device", "cpu", "--json"]) == code
    content: dict[str, object] = json.loads(capsys.readouterr().out)
    assert content["schema"] == 1
    return content


def test_kept_ceilings_are_shown_with_date_and_interval(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["roofline", "--device", "cpu"]) == 0
    printed = capsys.readouterr().out
    assert "2026-01-02T03:04:05Z" in printed and "10.0 GB/s" in printed and "0.2 TFLOP/s" in printed and "3.0%" in printed
    assert "20.0" in printed and "noisy" not in printed  # the ridge: 0.2 TFLOP/s over 10 GB/s


def test_noise_is_said_with_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    import time

    ceiling_file.update(KEY, {"rates": {**RATES, "noisy": "a neighbour"}, "at": time.time()})
    assert run(["roofline", "--device", "cpu"]) == 0
    assert "noisy and may be too low: a neighbour" in capsys.readouterr().out


def test_a_kernels_point_is_its_newest_time_and_the_best_config_of_that_run(
    workload: Workload, op: Op, capsys: pytest.CaptureFixture[str]
) -> None:
    store(workload, "first", ("cpp.stream", 1.0), ("torch.eager", 50.0))
    store(workload, "second", ("cpp.stream", 30.0), ("cpp.stream", 20.0))
    points = {point["kernel"]: point for point in asked(capsys, "vector_add")["points"]}  # type: ignore[attr-defined]
    assert points["cpp.stream"]["device_time_us"] == 20.0 and points["torch.eager"]["device_time_us"] == 50.0
    cost = op.cost(workload)
    assert points["cpp.stream"]["gbps"] == pytest.approx(cost.bytes / 20.0 / 1e3)
    assert points["cpp.stream"]["tflops"] == pytest.approx(cost.flops / 20.0 / 1e6)
    assert points["cpp.stream"]["flops_per_byte"] == pytest.approx(1 / 12)


def test_without_an_op_every_op_that_has_times_is_there(workload: Workload, capsys: pytest.CaptureFixture[str]) -> None:
    store(workload, "first", ("cpp.stream", 1.0))
    assert run(["roofline", "--device", "cpu", "--json"]) == 0
    assert {point["op"] for point in json.loads(capsys.readouterr().out)["points"]} == {"vector_add"}


@pytest.mark.parametrize("other", [{"protocol": "0"}, {"device_key": "cuda/x"}, {"mode": "call"}])
def test_times_of_another_protocol_device_or_mode_are_no_points(
    other: dict[str, str], workload: Workload, capsys: pytest.CaptureFixture[str]
) -> None:
    store(workload, "first", ("cpp.stream", 20.0), **other)
    assert asked(capsys, "vector_add", code=1)["points"] == []


def test_without_a_time_it_says_which_command_gives_one_and_the_answer_is_no(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["roofline", "vector_add", "--device", "cpu"]) == 1
    captured = capsys.readouterr()
    assert "`kernelyard tune vector_add`" in captured.err and "copy" in captured.out


def test_the_table_has_the_marks_of_the_drawing(workload: Workload, capsys: pytest.CaptureFixture[str]) -> None:
    store(workload, "first", ("cpp.stream", 10.0))
    assert run(["roofline", "vector_add", "--device", "cpu"]) == 0
    printed = capsys.readouterr().out
    assert any(line.split()[:1] == ["A"] and "cpp.stream" in line for line in printed.splitlines())
    assert "stayed in a cache" in printed  # 786 kB in 10 us is 79 GB/s, over the copy's 10


def test_a_picture_is_drawn_on_request_and_one_that_cannot_be_is_one_message(
    workload: Workload, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store(workload, "first", ("cpp.stream", 10.0))
    picture = tmp_path / "roof.svg"
    assert run(["roofline", "vector_add", "--device", "cpu", "--svg", str(picture)]) == 0
    assert "cpp.stream" in picture.read_text() and "measured 2026-01-02" in picture.read_text()
    assert run(["roofline", "--device", "cpu", "--svg", str(tmp_path / "absent" / "roof.svg")]) != 0
    assert "can't be written" in capsys.readouterr().err


def test_an_unknown_op_is_refused_with_those_that_exist(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["roofline", "nothing", "--device", "cpu"]) == 2
    assert "vector_add" in capsys.readouterr().err
