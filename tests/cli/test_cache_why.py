"""`cache why`: the choice that serves, and every part of the key that has changed where none does."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from kernelyard.cli import run
from kernelyard.registry.machine import identity
from tests.cli import stored

ASKED = ["cache", "why", "rmsnorm", "--shape", "3x8", "--dtype", "fp32", "--device", "cpu"]
HERE = identity("cpu")


def why(capsys: pytest.CaptureFixture[str], *more: str, code: int = 1) -> dict[str, Any]:
    assert run([*ASKED, "--json", *more]) == code
    (row,) = json.loads(capsys.readouterr().out)["workloads"]
    return dict(row)


def parts(row: dict[str, Any]) -> list[str]:
    (one,) = row["choices"]
    return [change["part"] for change in one["changes"]]


def test_a_choice_that_holds_is_told_as_what_serves(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stored.save()
    row = why(capsys, code=0)
    assert row["chosen"] and row["choices"][0]["serves"] and row["serves"]["kernel"] == "cpp.onepass"
    assert "stored choice of run run-1: fastest" in row["serves"]["reason"]


def test_every_part_that_has_changed_is_told_with_both_values(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stored.save(contract_hash="c0", source_hash="s0", space_hash="p0", versions={"c++": "old"})
    row = why(capsys)
    assert parts(row)[:3] == ["contract", "source", "space"] and {"environment: c++", "environment: tvm_ffi"} == set(parts(row)[3:])
    source = row["choices"][0]["changes"][1]
    assert source["then"] == "s0" and source["now"] == stored.choice(stored.workload()).source_hash
    assert run(ASKED) == 1
    assert "source: the kernel's source has changed since it was tuned (s0, now " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("key", "told"),
    [
        (f"cpu/{HERE.name}/{HERE.capability}/Plan9", "device: driver"),
        (f"cpu/{HERE.name}/z80-2t/{HERE.driver}", "device: capability"),
        (f"cpu/Other/{HERE.capability}/{HERE.driver}", "device"),
        ("npu/Other/1/2", "device"),
    ],
)
def test_a_choice_of_another_device_says_what_of_the_device_differs(
    home: Path, capsys: pytest.CaptureFixture[str], key: str, told: str
) -> None:
    asked = stored.workload()
    stored.save(asked, device_key=key, workload_key=asked.key().replace("@cpu", f"@{key.partition('/')[0]}"))
    assert parts(why(capsys)) == [told]


def test_a_kernel_that_is_gone_and_a_row_that_can_not_be_read_are_told(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stored.save()

    with sqlite3.connect(home / "kernelyard.db") as connection:
        connection.execute("update choices set kernel = 'cpp.gone'")
    assert parts(why(capsys)) == ["kernel"]
    with sqlite3.connect(home / "kernelyard.db") as connection:
        connection.execute("update choices set config = '{'")
    assert parts(why(capsys)) == ["entry"]


def test_times_of_another_protocol_still_serve_and_would_be_measured_anew(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stored.save(evidence={**stored.EVIDENCE, "protocol": "1"})
    row = why(capsys, code=0)
    assert row["choices"][0]["serves"]
    assert any(reason.startswith("the protocol of its times was 1, is ") for reason in row["choices"][0]["anew"])


def test_without_a_choice_it_says_so(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(ASKED) == 1
    assert "no choice is stored for it, of any device" in capsys.readouterr().out


def test_a_choice_that_holds_and_does_not_fit_is_passed_over_with_the_reason(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stored.save(config={"threads": 3})
    row = why(capsys)
    assert not row["chosen"] and "config has ['threads']" in row["choices"][0]["passed_over"]


FINALS = [{"kernel": "torch.eager", "device_time_us": {"median": 9.0, "low": 8.0, "high": 10.0}}]


@pytest.mark.parametrize(
    ("kernel", "told"),
    [
        ("cpp.onepass", "it serves: stored choice"),
        ("torch.eager", "it lost in finals: 9 us, the choice 3.5 us"),
        ("cuda.row", "it was not tuned: no GPU was here"),
        ("triton.row", "cpp.onepass comes before it"),
    ],
)
def test_a_kernel_that_is_named_is_explained(home: Path, capsys: pytest.CaptureFixture[str], kernel: str, told: str) -> None:
    stored.save(evidence={**stored.EVIDENCE, "finals": FINALS, "skipped": {"cuda.row": "no GPU was here"}})
    assert told in why(capsys, "--kernel", kernel, code=0)["kernel_reason"]


def test_a_kernel_that_does_not_exist_is_refused_with_those_that_do(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*ASKED, "--kernel", "cpp.none"]) == 2
    assert "cpp.onepass" in capsys.readouterr().err
