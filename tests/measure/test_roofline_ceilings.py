"""Ceilings: the best way to copy, kept between processes, measured anew where they were measured in noise long ago."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from kernelyard.measure import ceiling_file, ceilings, copying
from kernelyard.measure.clocks import Stopwatch
from kernelyard.measure.measured import Measured
from kernelyard.registry.machine import identity


@pytest.fixture(autouse=True)
def own_home(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("kernelyard.measure.arguments.CPU_LEAST_BYTES", 1 << 20)
    monkeypatch.setattr(ceilings, "COPY_BYTES", {"cpu": 1 << 16})
    monkeypatch.setattr(ceilings, "_copies_in_noise", {})
    monkeypatch.setattr(ceilings, "MATRIX_SIZES", {"cpu": {"float32": (8, 16)}})
    return home


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every measurement gives 10 us, and one thread half of that; the list has what was measured."""
    names: list[str] = []

    def fake(device_type: str, work: Mapping[str, Any]) -> Measured:
        names.extend(work)
        watches = {name: Stopwatch("monotonic", lambda calls: 10.0 * calls) for name in work}
        samples = {name: ((5.0, 5.0) if name == "one thread" else (10.0, 10.0),) * 3 for name in work}
        return Measured("device", samples, dict.fromkeys(work, 1), watches, noise="a neighbour" if "noise" in names else "")

    monkeypatch.setattr(ceilings, "timed", fake)
    return names


def test_rates_are_of_the_best_way_and_the_best_size(timed: list[str]) -> None:
    found = ceilings.ceilings("cpu")
    assert found.copy_gbps == pytest.approx((1 << 16) / 5 / 1e3) and found.read_gbps == pytest.approx((1 << 16) / 10 / 1e3)
    assert found.matrix_tflops["float32"] == pytest.approx(2 * 16**3 / 10 / 1e6)
    assert found.peak_gbps >= found.copy_gbps and set(found.spreads) == {"copy", "read", "float32"}


def test_ceilings_are_measured_once_and_kept(timed: list[str]) -> None:
    first = ceilings.ceilings("cpu")
    timed.clear()
    assert ceilings.ceilings("cpu") == first and timed == []
    ceilings.ceilings("cpu", refresh=True)
    assert timed


def test_those_measured_in_noise_say_so_and_serve_for_a_while(timed: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    timed.append("noise")
    found = ceilings.ceilings("cpu")
    measured = len(timed)
    assert found.noisy == "a neighbour" and ceilings.ceilings("cpu") == found and len(timed) == measured
    monkeypatch.setattr(ceilings, "NOISY_S", -1.0)
    timed.clear()
    assert not ceilings.ceilings("cpu").noisy and timed
    timed.clear()
    assert ceilings.ceilings("cpu") and timed == []


def test_a_copy_of_each_size_is_measured_once_and_survives_a_refresh(timed: list[str]) -> None:
    assert ceilings.best_copy(4096, "cpu") == ceilings.best_copy(4096, "cpu") == ceilings.Copy("one thread", 5.0)
    assert timed == ["all threads", "one thread"]
    ceilings.best_copy(8192, "cpu")
    ceilings.ceilings("cpu", refresh=True)
    timed.clear()
    ceilings.best_copy(4096, "cpu")
    assert timed == []


def test_a_copy_measured_in_noise_serves_this_process_alone(timed: list[str]) -> None:
    timed.append("noise")
    first = ceilings.best_copy(4096, "cpu")
    timed.clear()
    assert ceilings.best_copy(4096, "cpu") is first and timed == []
    assert "copies" not in ceiling_file.read(identity("cpu").key())


@pytest.mark.parametrize("content", ["", "[]", "null", '{"device_key'])
def test_a_damaged_file_is_measured_anew(content: str, own_home: Path, timed: list[str]) -> None:
    first = ceilings.ceilings("cpu")
    (file,) = (own_home / "ceilings").iterdir()
    file.write_text(content)
    assert ceilings.ceilings("cpu").copy_gbps == first.copy_gbps


def test_a_file_of_another_device_is_not_used(own_home: Path, timed: list[str]) -> None:
    first = ceilings.ceilings("cpu")
    (file,) = (own_home / "ceilings").iterdir()
    file.write_text(file.read_text().replace(first.device_key, "cpu/another"))
    timed.clear()
    assert ceilings.ceilings("cpu").copy_gbps == first.copy_gbps and timed


@pytest.mark.parametrize("name", ["PROTOCOL", "VERSION"])
def test_what_another_protocol_or_version_wrote_is_not_used(name: str, timed: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    ceilings.ceilings("cpu")
    ceilings.best_copy(4096, "cpu")
    monkeypatch.setattr(ceiling_file, name, "next")
    timed.clear()
    ceilings.best_copy(4096, "cpu")
    ceilings.ceilings("cpu")
    assert timed.count("one thread") > 1 and "16" in timed


@pytest.mark.parametrize(("nbytes", "half"), [(0, 16), (31, 16), (32, 16), (33, 32), (6_000_018, 3_000_016)])
def test_each_half_of_a_copy_is_a_multiple_of_16_bytes_at_an_aligned_address(nbytes: int, half: int) -> None:
    for (target,), (source,) in copying.copy_arguments(nbytes, "cpu").sets[:2]:
        assert source.nbytes == target.nbytes == half
        assert source.data_ptr() % 16 == target.data_ptr() % 16 == 0


@pytest.mark.parametrize("way", [way for ways in copying.WAYS.values() for way in ways])
def test_every_way_copies_every_bit_and_leaves_the_threads_as_they_were(way: str) -> None:
    source, threads = torch.randn(1000), torch.get_num_threads()
    target = torch.full((1000,), float("nan"))
    executable = copying.copier(way)
    assert executable.into is not None
    executable.into((target,), source)
    copied = executable.call(source)
    assert target.equal(source) and copied.equal(source) and copied.data_ptr() != source.data_ptr()
    assert torch.get_num_threads() == threads


def test_every_device_can_be_measured() -> None:
    measured = ceilings.timed("cpu", copying.copies(1 << 16, "cpu"))
    assert set(measured.names) == set(copying.WAYS["cpu"]) and all(measured[way].median_us > 0 for way in measured.names)
