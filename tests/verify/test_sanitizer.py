"""Reports of compute-sanitizer are read whatever its version, silence is no clean bill, and on a GPU planted faults are caught."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from kernelyard.registry import registry
from kernelyard.registry.op import Point
from kernelyard.verify import sanitizer_program
from kernelyard.verify.sanitizer import LAUNCHED, judged, points_for, sanitize
from kernelyard.verify.sanitizer_program import command, find_sanitizer
from kernelyard.verify.sanitizer_report import Finding, parse

# In the formats of NVIDIA's user manual: 2025.x, and the older "at 0x... in file:line:function".
OUT_OF_BOUNDS = """\
========= COMPUTE-SANITIZER
kernelyard-launched
========= Invalid __global__ write of size 4 bytes
=========     at planted(float *, const float *, const float *, long)+0x1a0 in /src/planted_cuda.cu:29
=========     by thread (0,0,0) in block (0,0,0)
=========     Address 0x7f3c7ec001fc is out of bounds
=========     and is 1 bytes after the nearest allocation at 0x7f3c7ec00000 of size 508 bytes
=========
========= Invalid __global__ write of size 4 bytes
=========     at planted(float *, const float *, const float *, long)+0x1a0 in /src/planted_cuda.cu:29
=========     by thread (0,0,0) in block (7,0,0)
=========     Address 0x7f3c7ec00ffc is out of bounds
=========     and is 1 bytes after the nearest allocation at 0x7f3c7ec00000 of size 4,092 bytes
=========     Device Frame: planted(float *, const float *, const float *, long)+0x30 in /src/planted_cuda.cu:44
=========     Saved host backtrace up to driver entry point at kernel launch time
=========         Host Frame: main [0xae66] in memcheck_demo
=========
========= ERROR SUMMARY: 2 errors
"""
OLDER = """\
========= COMPUTE-SANITIZER
========= Invalid __shared__ read of size 16 bytes
=========     at 0x3c8 in U:/lab/exercise01.cu:42:affine_decrypt(int*,int*)
=========     by thread (0,0,0) in block (0,0,0)
=========     Address 0x4 is misaligned
=========
========= Invalid __global__ read of size 2 bytes
=========     at 0x60 in _row_kernel
=========     by thread (63,0,0) in block (0,0,0)
=========     Address 0x7f004700004f is out of bounds
=========
========= ERROR SUMMARY: 2 errors
"""
RACE = """\
========= COMPUTE-SANITIZER
kernelyard-launched
========= Error: Race reported between Write access at sumKernel(int *, int *)+0x90 in /src/block_error.cu:41
=========     and Read access at sumKernel(int *, int *)+0x100 in /src/block_error.cu:51 [508 hazards]
=========     and Read access at sumKernel(int *, int *)+0x120 in /src/block_error.cu:52 [1,024 hazards]
=========
========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)
"""
UNINITIALISED = """\
========= COMPUTE-SANITIZER
========= Uninitialized __global__ memory read of size 4 bytes
=========     at vectorAdd(int *)+0x70 in /src/memset_error.cu:41
=========     by thread (31,0,0) in block (1,0,0)
=========     Address 0x7f3c7ec000fc
=========
========= ERROR SUMMARY: 1 error
"""
UNKNOWN = """\
========= COMPUTE-SANITIZER
========= Tensor Memory column 32 being accessed by instruction tcgen05.ld is not allocated. Columns allocated are: 0-31.
=========     at guardrail_trap+0x1250 in TcmmaGuardrails.cu:99
=========     by thread (0,0,0) in block (0,0,0)
=========
========= Internal Sanitizer Error: The Sanitizer encountered an error while launching kernel_name and didn't track the launch.
========= ERROR SUMMARY: 1 error
"""
CLEAN = f"========= COMPUTE-SANITIZER\n{LAUNCHED}\n{LAUNCHED}\n========= ERROR SUMMARY: 0 errors\n"


def test_equal_stores_out_of_bounds_are_one_finding_with_kernel_line_and_size() -> None:
    (found,) = parse(OUT_OF_BOUNDS).findings
    assert (found.kind, found.size, found.count) == ("write", 4, 2)
    assert found.function == "planted(float *, const float *, const float *, long)"
    assert found.line == "/src/planted_cuda.cu:29"
    assert found.address == "0x7f3c7ec001fc" and "1 bytes after the nearest allocation" in found.words


def test_older_formats_are_read_too_with_and_without_a_line() -> None:
    shared, unlined = parse(OLDER).findings
    assert (shared.kind, shared.size, shared.function, shared.line) == ("read", 16, "affine_decrypt(int*,int*)", "U:/lab/exercise01.cu:42")
    assert (unlined.function, unlined.line, unlined.size) == ("_row_kernel", "", 2)


def test_race_has_both_lines_in_its_words_and_its_hazards_counted() -> None:
    (found,) = parse(RACE).findings
    assert (found.kind, found.line, found.count) == ("race", "/src/block_error.cu:41", 1532)
    assert "block_error.cu:51" in found.words


def test_uninitialised_read_is_told_from_one_out_of_bounds() -> None:
    (found,) = parse(UNINITIALISED).findings
    place = ("vectorAdd(int *)", "/src/memset_error.cu:41", 4, "0x7f3c7ec000fc")
    assert found == Finding("uninitialised read", found.words, *place)


def test_what_is_not_understood_is_kept_as_words() -> None:
    found = parse(UNKNOWN).findings
    assert [one.kind for one in found] == ["other", "other"]
    assert "column 32" in found[0].words and found[0].line == "TcmmaGuardrails.cu:99"
    assert "didn't track the launch" in found[1].words


def test_clean_needs_a_summary_of_0_and_every_launch() -> None:
    assert judged("memcheck", CLEAN, 0, 2, 1.0).clean
    for output, code, words in (
        (CLEAN, 0, "2 of 3 launches"),
        (CLEAN.partition("========= ERROR")[0], 0, "without its summary"),
        (CLEAN.replace("0 errors", "3 errors"), 0, "counts 3 errors"),
        (CLEAN, 1, "code 1"),
    ):
        points = 3 if "of 3" in words else 2
        run = judged("memcheck", output, code, points, 1.0)
        assert not run.clean and words in run.problem


def test_the_program_is_looked_for_in_the_toolkit_named_on_path_and_where_toolkits_stand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_PATH", raising=False)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "named"))
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    monkeypatch.setattr(sanitizer_program, "USUAL", tmp_path / "usual")
    missing = find_sanitizer()
    assert missing.program is None
    assert f"looked in CUDA_HOME={tmp_path}/named, PATH, {tmp_path}/usual/cuda*" in missing.reason()
    for folder in ("usual/cuda-13.0/compute-sanitizer", "named/bin"):
        program = tmp_path / folder / "compute-sanitizer"
        program.parent.mkdir(parents=True)
        program.write_text("#!/bin/sh\n")
        program.chmod(0o755)
        assert find_sanitizer().program == program


def test_a_cpu_is_unsupported_and_never_ok() -> None:
    table = registry.current()
    op = table.op("rmsnorm")
    found = sanitize(op, table.kernel("rmsnorm", "cpp.onepass"), op.matrix("correctness", "cpu"), "cpu", ("memcheck",), 10)
    assert not found.ok and found.as_dict()["status"] == "unsupported" and "this device is cpu" in found.reason


def test_points_are_small_and_have_a_ragged_tail_and_none() -> None:
    table = registry.current()
    for name, kernel in (("rmsnorm", "triton.row"), ("vector_add", "cuda.stream")):
        op = table.op(name)
        points = points_for(op, table.kernel(name, kernel), op.matrix("correctness", "cuda"), "cuda")
        assert {bool(point.dims[-1] % 8) for point in points} == {True, False}


def test_the_child_gets_its_points_as_json() -> None:
    words = command(Path("/cs"), "memcheck", "vector_add", "cuda.stream", (Point((127,), "float32"),))
    assert words[:3] == ["/cs", "--tool", "memcheck"] and "--padding" in words
    assert json.loads(words[-1]) == [[[127], "float32", "contiguous", []]]


# On a GPU -------------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    ("name", "tool", "kind"), [("overrun", "memcheck", "write"), ("race", "racecheck", "race"), ("right", "memcheck", "")]
)
def test_planted_faults_are_caught_and_a_right_kernel_is_clean(name: str, tool: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if find_sanitizer().program is None:
        pytest.skip(find_sanitizer().reason())
    monkeypatch.setenv("KERNELYARD_EXTRA_PLUGINS", "tests.verify.planted_cuda:plugin")
    monkeypatch.setenv("PYTHONPATH", os.getcwd())
    registry.reset()
    try:
        table = registry.current()
        op = table.op("vector_add")
        found = sanitize(op, table.kernel("vector_add", f"cuda.{name}"), op.matrix("smoke", "cuda"), "cuda", (tool,), 90)
    finally:
        registry.reset()
    (run,) = found.runs
    assert found.ok is (name == "right"), run.problem or run.findings
    if kind:
        assert kind in {finding.kind for finding in run.findings}
        assert any("planted_cuda.cu" in finding.line for finding in run.findings)
