"""The device lock between processes, its log, and what counts as a disturbance."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from kernelyard.measure import device, nvidia, state
from kernelyard.registry.machine import identity
from kernelyard.registry.spec import DeviceIdentity

HOLD = """
import sys
import threading
from kernelyard.measure import device
from kernelyard.registry.machine import identity
with device.lock(identity("cpu"), lambda message: print(message, flush=True)):
    print("held", flush=True)
    sys.stdin.readline()
"""

FORK = """
import os
from kernelyard.measure import device
from kernelyard.registry.machine import identity
reads, writes = os.pipe()
with device.lock(identity("cpu")):
    child = os.fork()
    if child == 0:
        with device.lock(identity("cpu"), lambda message: os.write(writes, b"child-waits ")):
            os.write(writes, b"child-held ")
        os._exit(0)
    told = os.read(reads, 100)
    told += b"parent-done "
os.waitpid(child, 0)
print((told + os.read(reads, 100)).decode())
"""


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNELYARD_HOME", str(tmp_path / "home"))


def holder_process() -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_a_second_process_waits_says_for_whom_and_then_gets_the_device() -> None:
    with device.lock(identity("cpu")):
        process = holder_process()
        assert f"process {os.getpid()} is timing" in line(process)
    assert line(process) == "held"
    process.communicate("\n")
    ours, theirs = device.holders(identity("cpu"))
    assert (ours.pid, theirs.pid) == (os.getpid(), process.pid)
    assert ours.end is not None and ours.end <= theirs.start


def test_the_lock_of_a_killed_process_is_free() -> None:
    process = holder_process()
    assert line(process) == "held"
    process.kill()
    process.communicate()
    messages: list[str] = []
    with device.lock(identity("cpu"), messages.append):
        assert messages == []
    assert [holder.end is None for holder in device.holders(identity("cpu"))] == [True, False]


def test_another_thread_waits_like_a_stranger() -> None:
    messages: list[str] = []
    asked, got = threading.Event(), threading.Event()

    def other() -> None:
        with device.lock(identity("cpu"), lambda message: (messages.append(message), asked.set())):  # type: ignore[func-returns-value, arg-type]
            got.set()

    thread = threading.Thread(target=other)
    with device.lock(identity("cpu")):
        thread.start()
        assert asked.wait(20) and not got.is_set()
    thread.join(20)
    assert got.is_set() and f"process {os.getpid()} is timing" in messages[0]


def test_a_child_forked_off_by_the_holder_waits_like_a_stranger() -> None:
    done = subprocess.run([sys.executable, "-c", FORK], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == ["child-waits", "parent-done", "child-held"]


def test_an_old_lock_file_and_a_torn_log_line_stop_nobody() -> None:
    path = device.lock_path(identity("cpu"))
    path.touch()
    path.with_suffix(".log").write_text('{"pid": 1, "sta')
    with device.lock(identity("cpu")):
        pass


def test_the_lock_is_reentrant_and_logged_once() -> None:
    with device.lock(identity("cpu")), device.lock(identity("cpu")):
        pass
    assert len(device.holders(identity("cpu"))) == 1


def test_devices_have_locks_of_their_own() -> None:
    other = DeviceIdentity("cuda", "GPU", "sm_90", "1", "cuda-00/../ff")
    assert device.lock_path(other) != device.lock_path(identity("cpu"))
    assert device.lock_path(other).parent == device.lock_path(identity("cpu")).parent


def test_the_cpu_tells_its_cores_and_load() -> None:
    seen = device.state(identity("cpu"))
    assert seen.device_type == "cpu" and seen.cores is not None and seen.cores >= 1


def usage(at: float, busy: float, stolen: float, own: float) -> state._Usage:
    return state._Usage(at, busy, stolen, own)


def test_work_of_others_is_a_disturbance_and_our_own_is_not() -> None:
    start = usage(0.0, 0.0, 0.0, 0.0)
    assert state._disturbance(start, usage(1.0, 2.0, 0.0, 2.0), 2) == ""
    assert "other processes used 1.0 of 2 cores" in state._disturbance(start, usage(1.0, 2.0, 0.0, 1.0), 2)
    assert "hypervisor took 0.5 of 2 cores" in state._disturbance(start, usage(1.0, 1.0, 0.5, 1.0), 2)


def test_a_batch_too_short_to_tell_or_a_system_that_does_not_tell_is_no_disturbance() -> None:
    assert state._disturbance(usage(0.0, 0.0, 0.0, 0.0), usage(0.01, 1.0, 0.0, 0.0), 2) == ""
    assert state._disturbance(None, None, 2) == ""


def test_a_gpu_slowed_by_heat_is_noisy_and_one_at_its_power_cap_is_not() -> None:
    hot = nvidia.smi_state(["GPU-1", "1200", "3201", "88", "600.5", "0x0000000000000020"])
    assert hot.noisy == "clocks held down by heat" and (hot.mhz, hot.temperature_c, hot.power_w) == (1200, 88, 600.5)
    capped = nvidia.smi_state(["GPU-1", "1500", "3201", "60", "700.0", "0x0000000000000004"])
    assert capped.noisy == "" and capped.throttle == ("power cap",)


def test_what_nvidia_smi_does_not_know_is_none() -> None:
    assert nvidia.smi_state(["GPU-1", "[N/A]", "3201", "40", "[N/A]", "[N/A]"]).power_w is None
