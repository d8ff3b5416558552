"""`measure` on real clocks and kernels; no test here asserts how fast anything is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from kernelyard.contracts.rmsnorm import RMSNORM
from kernelyard.contracts.vector_add import VECTOR_ADD
from kernelyard.errors import MeasurementFailed, UnknownName, UsageError
from kernelyard.measure.arguments import rotation
from kernelyard.measure.clocks import Stopwatch
from kernelyard.measure.device import holders
from kernelyard.measure.interleave import Plan, interleave
from kernelyard.measure.protocol import Candidate, Measured, first_call_us, measure
from kernelyard.registry.backend import Executable
from kernelyard.registry.machine import identity
from kernelyard.registry.op import Op, Point

NORM = RMSNORM.workload(Point((16, 512), "float32"))
ADD = VECTOR_ADD.workload(Point((1,), "float32"))


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNELYARD_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("kernelyard.measure.arguments.CPU_LEAST_BYTES", 4 << 20)  # enough for what is tested here, and quicker


def rms_norm(x: Any, w: Any, eps: float, offset: float, casting: str) -> Any:
    return torch.nn.functional.rms_norm(x, (x.shape[-1],), w, eps)


def quick(*candidates: Candidate, **options: Any) -> Measured:
    return measure(candidates, device_type="cpu", most_batches=3, **{"budget_s": 0.05, **options})


@pytest.mark.parametrize("mode", ["device", "call"])
def test_a_kernel_against_itself_gives_times_and_a_ratio(mode: Any) -> None:
    executable = Executable(rms_norm)
    measured = quick(Candidate("a", RMSNORM, NORM, executable), Candidate("b", RMSNORM, NORM, executable), mode=mode)
    timing, ratio = measured["a"], measured.ratio("a", "b")
    assert timing.low_us <= timing.median_us <= timing.high_us and timing.median_us > 0
    assert (timing.mode, timing.clock, timing.batches) == (mode, "monotonic", 3)
    assert ratio is not None and ratio.low <= ratio.median <= ratio.high
    assert [state.device_type for state in measured.states] == ["cpu", "cpu"]


def test_a_kernel_that_takes_no_longer_than_the_loop_around_it_is_below_resolution_and_no_win() -> None:
    nothing = Stopwatch("fake", lambda calls: 0.2 * calls, empty_us=lambda calls: 0.2 * calls)
    real = Stopwatch("fake", lambda calls: 50.2 * calls, empty_us=lambda calls: 0.2 * calls)
    measured = interleave({"nothing": nothing, "real": real}, Plan(batches=3, most_batches=3, budget_s=0.01, warm_up_s=0.0), "device")
    assert measured.below_resolution("nothing") and not measured.below_resolution("real")
    assert measured.ratio("real", "nothing") is None


def test_device_mode_writes_into_given_outputs_in_turn_and_call_mode_allocates() -> None:
    written: set[int] = set()
    calls: list[str] = []

    def into(outputs: Any, a: Any, b: Any) -> None:
        written.add(outputs[0].data_ptr())
        calls.append("into")

    def call(a: Any, b: Any) -> Any:
        calls.append("call")
        return a

    candidate = Candidate("k", VECTOR_ADD, ADD, Executable(call, into))
    quick(candidate)
    assert set(calls) == {"into"} and len(written) > 100
    calls.clear()
    quick(candidate, mode="call")
    assert set(calls) == {"call"}


def test_allocation_inside_device_time_is_said() -> None:
    measured = quick(Candidate("k", RMSNORM, NORM, Executable(rms_norm)))
    assert "allocated inside the time" in measured.notes("k") and "rotated" in measured.notes("k")


def test_where_one_candidate_can_only_allocate_all_allocate() -> None:
    calls: list[str] = []

    def call(a: Any, b: Any) -> Any:
        calls.append("call")
        return a + b

    writes = Candidate("writes", VECTOR_ADD, ADD, Executable(call, lambda outputs, a, b: calls.append("into")))
    allocates = Candidate("allocates", VECTOR_ADD, ADD, Executable(lambda a, b: a + b))
    measured = quick(writes, allocates)
    assert set(calls) == {"call"}
    assert "for all candidates alike" in measured.notes("writes")


def test_results_held_back_are_bounded_and_distinct() -> None:
    """A kernel that can't write into given tensors must not get the one buffer that it just freed, hot in cache."""
    held: list[int] = []

    def call(x: Any, w: Any, *rest: Any) -> Any:
        out = torch.empty_like(x)
        held.append(out.data_ptr())
        return out

    workload = RMSNORM.workload(Point((64, 1024), "float32"))
    count = len(rotation(RMSNORM, workload).sets)
    quick(Candidate("k", RMSNORM, workload, Executable(call)))
    assert count > 4 and len(set(held[-count:])) == count


def test_a_candidate_that_raises_is_named_and_the_device_is_free_again() -> None:
    def broken(*args: Any) -> Any:
        raise RuntimeError("no kernel image")

    with pytest.raises(MeasurementFailed, match=r"cpp\.broken raised RuntimeError .*no kernel image"):
        quick(Candidate("cpp.broken", RMSNORM, NORM, Executable(broken)))
    assert all(holder.end is not None for holder in holders(identity("cpu")))


def test_names_must_differ_and_exist() -> None:
    candidate = Candidate("a", VECTOR_ADD, ADD, Executable(lambda a, b: a + b))
    with pytest.raises(UsageError):
        quick(candidate, candidate)
    with pytest.raises(UsageError):
        quick()
    measured = quick(candidate)
    with pytest.raises(UnknownName, match="'b'"):
        measured.ratio("a", "b")


def test_candidates_of_one_workload_share_their_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []

    def counting(op: Op, workload: Any) -> Any:
        made.append(workload.key())
        return rotation(op, workload)

    monkeypatch.setattr("kernelyard.measure.protocol.rotation", counting)
    add = Executable(lambda a, b: a + b)
    quick(*(Candidate(name, VECTOR_ADD, ADD, add) for name in "abc"), Candidate("d", RMSNORM, NORM, Executable(rms_norm)))
    assert sorted(made) == sorted({ADD.key(), NORM.key()})


def test_the_first_call_is_timed_apart() -> None:
    calls: list[int] = []
    assert first_call_us(Executable(calls.append), (1,)) > 0 and calls == [1]
