"""Ceilings: kept between processes, never worse than missing, and a time below the floor is called impossible."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from kernelyard.contracts.vector_add import VECTOR_ADD
from kernelyard.measure import ceiling_file, roofline
from kernelyard.measure.clocks import Stopwatch
from kernelyard.measure.measured import Measured
from kernelyard.measure.protocol import Candidate, measure
from kernelyard.measure.roofline import Ceilings
from kernelyard.registry.backend import Executable
from kernelyard.registry.machine import identity
from kernelyard.registry.op import Point
from kernelyard.registry.spec import Cost, Timing

FOUND = Ceilings("cpu/x", "2026-01-01T00:00:00Z", copy_gbps=10.0, read_gbps=12.0, peak_gbps=100.0, matrix_tflops={"float32": 0.1})


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KERNELYARD_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("kernelyard.measure.arguments.CPU_LEAST_BYTES", 1 << 20)
    monkeypatch.setattr(roofline, "COPY_BYTES", {"cpu": 1 << 16})
    monkeypatch.setattr(roofline, "_in_noise", {})
    monkeypatch.setattr(roofline, "MATRIX_SIZES", {"cpu": {"float32": 8}})
    return tmp_path / "home"


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every measurement gives 10 us; the list has what was measured."""
    names: list[str] = []

    def fake(device_type: str, work: Mapping[str, Any]) -> Measured:
        names.extend(work)
        watches = {name: Stopwatch("monotonic", lambda calls: 10.0 * calls) for name in work}
        noise = "a neighbour" if "noise" in names else ""
        return Measured("device", dict.fromkeys(work, ((10.0, 10.0),) * 3), dict.fromkeys(work, 1), watches, noise=noise)

    monkeypatch.setattr(roofline, "_time", fake)
    return names


def timing(median_us: float, clock: str = "monotonic", mode: str = "device") -> Timing:
    return Timing(median_us, median_us, median_us, mode, clock, 3, 100)


def test_ceilings_are_measured_once_and_kept(timed: list[str]) -> None:
    first = roofline.ceilings("cpu")
    assert first.copy_gbps == pytest.approx((1 << 16) / 10 / 1e3)
    assert first.matrix_tflops["float32"] == pytest.approx(2 * 8**3 / 10 / 1e6)
    timed.clear()
    assert roofline.ceilings("cpu") == first and timed == []
    roofline.ceilings("cpu", refresh=True)
    assert timed


def test_what_was_measured_in_noise_serves_once_accuses_nobody_and_is_not_kept(own_home: Path, timed: list[str]) -> None:
    timed.append("noise")
    found = roofline.ceilings("cpu")
    assert found.noisy and roofline.ceilings("cpu") is found
    assert roofline.impossible(Cost(10**12, 0), timing(1.0), found, "float32") == ""
    roofline.copy_us(4096, "cpu")
    assert not (own_home / "ceilings").exists()


def test_a_copy_of_each_size_is_measured_once_and_survives_a_refresh(timed: list[str]) -> None:
    assert roofline.copy_us(4096, "cpu") == roofline.copy_us(4096, "cpu") == 10.0
    assert timed == ["copy"]
    roofline.copy_us(8192, "cpu")
    roofline.ceilings("cpu", refresh=True)
    timed.clear()
    roofline.copy_us(4096, "cpu")
    assert timed == []


@pytest.mark.parametrize("content", ["", "[]", "null", '{"device_key'])
def test_a_damaged_file_is_measured_anew(content: str, own_home: Path, timed: list[str]) -> None:
    first = roofline.ceilings("cpu")
    (file,) = (own_home / "ceilings").iterdir()
    file.write_text(content)
    assert roofline.ceilings("cpu").copy_gbps == first.copy_gbps


def test_a_file_of_another_device_is_not_used(own_home: Path, timed: list[str]) -> None:
    first = roofline.ceilings("cpu")
    (file,) = (own_home / "ceilings").iterdir()
    file.write_text(file.read_text().replace(first.device_key, "cpu/another"))
    timed.clear()
    assert roofline.ceilings("cpu").copy_gbps == first.copy_gbps and timed


def test_what_another_protocol_measured_is_not_used(timed: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    roofline.ceilings("cpu")
    roofline.copy_us(4096, "cpu")
    monkeypatch.setattr(ceiling_file, "PROTOCOL", "next")
    timed.clear()
    roofline.copy_us(4096, "cpu")
    roofline.ceilings("cpu")
    assert timed.count("copy") > 1 and "mm" in timed
    assert set(ceiling_file.read(identity("cpu").key())["copies_us"]) == {"4096"}


def test_a_copy_may_be_asked_for_before_the_ceilings(timed: list[str]) -> None:
    roofline.copy_us(4096, "cpu")
    assert roofline.ceilings("cpu").copy_gbps > 0


def test_the_limit_is_the_longer_of_bytes_and_operations(timed: list[str]) -> None:
    rate = 2 * 8**3 / 10  # operations per microsecond, by the matrix product that took 10 us
    assert roofline.limit_us(Cost(4096, 1), "float32", "cpu") == 10.0
    assert roofline.limit_us(Cost(4096, int(50 * rate)), "float32", "cpu") == pytest.approx(50.0, rel=0.01)
    assert roofline.limit_us(Cost(4096, 1), "float32", "cpu", copied_us=7.0) == 7.0


def test_a_percentage_where_there_is_none_is_none(timed: list[str]) -> None:
    percent = roofline.percent_of_ceiling(Cost(4096, 1), timing(20.0), dtype="float32", device_type="cpu")
    assert percent == pytest.approx(50.0)
    assert roofline.percent_of_ceiling(Cost(4096, 1), timing(0.0), dtype="float32", device_type="cpu") is None
    assert roofline.percent_of_ceiling(Cost(0, 0), timing(1.0), dtype="float32", device_type="cpu") is None


def test_a_time_below_the_floor_is_impossible() -> None:
    cost = Cost(bytes=100_000_000, flops=0)  # 1000 us at 100 GB/s
    assert "impossible: 500 us" in roofline.impossible(cost, timing(500.0), FOUND, "float32")
    assert roofline.impossible(cost, timing(950.0), FOUND, "float32") == ""
    assert roofline.impossible(cost, timing(500.0, clock="events"), FOUND, "float32") == ""
    assert roofline.impossible(cost, timing(500.0, mode="call"), FOUND, "float32") == ""
    assert roofline.impossible(Cost(0, 10**9), timing(100.0), FOUND, "float32")


def test_the_ceiling_can_be_timed_beside_the_kernels() -> None:
    workload = VECTOR_ADD.workload(Point((1000,), "float32"))
    candidate = roofline.copy_candidate(VECTOR_ADD, workload)
    add = Candidate("add", VECTOR_ADD, workload, Executable(torch.add))
    measured = measure([candidate, add], device_type="cpu", most_batches=3, budget_s=0.05)
    assert candidate.arguments is not None and candidate.arguments().set_bytes == VECTOR_ADD.cost(workload).bytes
    assert measured["copy"].median_us > 0
