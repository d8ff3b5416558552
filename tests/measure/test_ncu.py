"""Nsight Compute's pages as numbers, how it is started and what is said where it can't, and what the profiled process launches."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from kernelyard.errors import MeasurementFailed
from kernelyard.measure import ncu, ncu_child
from kernelyard.measure.ncu_csv import parse

DRAM = "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed"
POINT = [[4096], "float32", "contiguous", []]
WHO = '"7","python3.12","127.0.0.1"'
COLUMNS = '"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size","Grid Size","Device","CC"'
WHERE = '"1","7","(128, 1, 1)","(4, 1, 1)","0","9.0"'

RAW = f'''==PROF== Connected to process 7 (/usr/bin/python3.12)
==PROF== Profiling "add_kernel" - 0: 0%....50%....100% - 3 passes
a line of the program's own, "quoted"
==PROF== Disconnected from process 7
{COLUMNS},"{DRAM}","{ncu.DURATION}"
"","","","","","","","","","","","%","ns"
"0",{WHO},"add_kernel(float *, int)",{WHERE},"41.50","3,264"
"1",{WHO},"add_kernel(float *, int)",{WHERE},"43.50","3,200"
"2",{WHO},"add_kernel(float *, int)",{WHERE},"n/a","3,232"
'''

LONG = f'''==PROF== Connected to process 7 (/usr/bin/python3.12)
{COLUMNS},"Section Name","Metric Name","Metric Unit","Metric Value"
"0",{WHO},"add_kernel",{WHERE},"Command line profiler metrics","{DRAM}","%","41.50"
"0",{WHO},"add_kernel",{WHERE},"Command line profiler metrics","{ncu.DURATION}","us","1,205.00"
"1",{WHO},"add_kernel",{WHERE},"Command line profiler metrics","{DRAM}","","n/a"
"1",{WHO},"add_kernel",{WHERE},"Command line profiler metrics","{ncu.DURATION}","msecond","1.2"
'''

Install = Callable[[str], Path]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Puts a shell script in ncu's place, alone on PATH."""
    monkeypatch.setattr(ncu, "USUAL", ())
    monkeypatch.delenv("CUDA_HOME", raising=False)

    def script(body: str) -> Path:
        program = tmp_path / "ncu"
        program.write_text(f"#!/bin/sh\n{body}\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
        return tmp_path

    return script


def test_the_raw_page_is_a_row_a_launch_with_units_of_its_own() -> None:
    launches = parse(RAW)
    assert [one[ncu.DURATION] for one in launches] == pytest.approx([3.264, 3.2, 3.232])
    assert [one.get(DRAM) for one in launches] == [41.5, 43.5, None]


def test_the_default_page_is_a_row_a_metric() -> None:
    assert parse(LONG) == [{DRAM: 41.5, ncu.DURATION: 1205.0}, {ncu.DURATION: pytest.approx(1200.0)}]


@pytest.mark.parametrize(("unit", "value", "us"), [("ns", "3,200", 3.2), ("nsecond", "1,234,567", 1234.567), ("us", "3.2", 3.2),
                         ("usecond", "3.2", 3.2), ("ms", "3.2", 3200), ("second", "0.5", 5e5)])  # fmt: skip
def test_a_duration_is_in_microseconds_whatever_its_unit(unit: str, value: str, us: float) -> None:
    text = f'"ID","Kernel Name","{ncu.DURATION}"\n"","","{unit}"\n"0","k","{value}"\n'
    assert parse(text)[0][ncu.DURATION] == pytest.approx(us)


def test_a_duration_in_a_unit_that_nobody_knows_is_not_told() -> None:
    assert parse(f'"ID","Kernel Name","{ncu.DURATION}"\n"","","fortnight"\n"0","k","1"\n') == [{}]


def test_text_without_a_table_has_no_launches() -> None:
    assert parse("==WARNING== No kernels were profiled.\n") == []


def test_the_time_of_a_call_is_the_median_of_its_launches() -> None:
    found = ncu.summed([{ncu.DURATION: us} for us in (3.0, 9.0, 4.0)], 3)
    assert (found.duration_us, found.dram_percent) == (4.0, None)


def test_several_kernels_of_a_call_are_summed_and_their_percentages_weighted_by_time() -> None:
    call = [{ncu.DURATION: 1.0, DRAM: 10.0}, {ncu.DURATION: 3.0, DRAM: 50.0}]
    found = ncu.summed(call * 2, 2)
    assert (found.duration_us, found.dram_percent) == (4.0, 40.0)


def test_calls_of_unlike_numbers_of_kernels_are_averaged() -> None:
    assert ncu.summed([{ncu.DURATION: 2.0}] * 3, 2).duration_us == 3.0


def test_ncu_profiles_only_between_the_marks_and_leaves_the_clocks_alone(install: Install) -> None:
    folder = install("printf '%s\\n' \"$@\" > {}/words\ncat {}/page".replace("{}", '"$(dirname "$0")"'))
    (folder / "page").write_text(RAW)
    assert ncu.available()
    assert ncu.duration_us("vector_add", "triton.stream", {"BLOCK": 1024}, POINT, 3) == pytest.approx(3.232)
    words = (folder / "words").read_text().splitlines()
    assert words[words.index("--clock-control") + 1] == "none"
    assert words[words.index("--profile-from-start") + 1] == "off"
    assert words[words.index("--metrics") + 1] == ncu.DURATION
    assert words[words.index("--cache-control") + 1] == "none" and '"flush": true' in words[-1]
    assert "kernelyard.measure.ncu_child" in words
    told = ncu.counters("vector_add", "triton.stream", {}, POINT, 3)
    words = (folder / "words").read_text().splitlines()
    assert words[words.index("--cache-control") + 1] == "all" and '"flush": false' in words[-1]
    assert told.dram_percent == 42.5 and told.sm_percent is None


def test_without_ncu_it_is_said_where_was_looked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ncu, "USUAL", ())
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "toolkit"))
    answer = ncu.available()
    assert not answer and "PATH" in answer.reason and f"CUDA_HOME={tmp_path / 'toolkit'}" in answer.reason
    with pytest.raises(MeasurementFailed, match="ncu not found .*install Nsight Compute"):
        ncu.duration_us("vector_add", "triton.stream", {}, POINT)


def test_the_toolkit_that_cuda_home_names_has_ncu(install: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "toolkit" / "bin"
    folder.mkdir(parents=True)
    install("true").joinpath("ncu").rename(folder / "ncu")
    assert not ncu.available()
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "toolkit"))
    assert ncu.available()


def test_a_user_without_permission_is_told_the_remedy(install: Install) -> None:
    install("echo '==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU Performance Counters'; exit 1")
    with pytest.raises(MeasurementFailed, match="NVreg_RestrictProfilingToAdminUsers=0"):
        ncu.counters("vector_add", "triton.stream", {}, POINT)


def test_a_profile_that_takes_too_long_is_killed(install: Install) -> None:
    install("exec sleep 60")
    with pytest.raises(MeasurementFailed, match="still profiling triton.stream after 0.1 s"):
        ncu.duration_us("vector_add", "triton.stream", {}, POINT, timeout_s=0.1)


def test_what_the_profiled_process_said_is_passed_on(install: Install) -> None:
    install("while [ \"$1\" != -P ]; do last=\"$1\"; shift; done; \"$last\" \"$@\" 2>&1")
    with pytest.raises(MeasurementFailed, match=r"no launch of no\.such.*It said: .*(no kernel|CUDA|NVIDIA)"):
        ncu.duration_us("vector_add", "no.such", {}, POINT)


def test_the_process_warms_up_before_the_first_mark_and_launches_so_often_between_them(monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []
    original = ncu_child._launch

    def recorded(executable: object) -> Callable[..., None]:
        launch = original(executable)  # type: ignore[arg-type]
        return lambda pair: (events.append("launch"), launch(pair))[1]

    monkeypatch.setattr(ncu_child, "_launch", recorded)
    payload = {"op": "vector_add", "kernel": "torch.eager", "config": {}, "point": POINT, "device": "cpu", "launches": 4}
    ncu_child.run(payload, lambda: events.append("start"), lambda: events.append("stop"), lambda: events.append("wait"))
    assert events == ["launch"] * 3 + ["wait", "start"] + ["launch"] * 4 + ["wait", "stop"]
    events.clear()
    marks = [lambda name=name: events.append(name) for name in ("start", "stop", "wait", "flush")]
    ncu_child.run(payload | {"launches": 2}, *marks)  # type: ignore[arg-type]
    assert events == ["launch"] * 3 + ["flush", "wait", "start", "launch", "wait", "stop"] * 2
