"""What a case needs is estimated from shapes, and a case that does not fit is unsupported with the figures: never ok, never tried."""

from __future__ import annotations

import pytest
import torch

from kernelyard.contracts.rmsnorm import RMSNORM
from kernelyard.contracts.vector_add import VECTOR_ADD
from kernelyard.registry.backend import Executable
from kernelyard.registry.kernel import Kernel, Support
from kernelyard.registry.op import Matrix, Point
from kernelyard.registry.spec import Status
from kernelyard.verify import room
from kernelyard.verify.check import check_kernel
from kernelyard.verify.oracle import check_workload
from tests.wrong_kernels.catalogue import rmsnorm

CPU = torch.device("cpu")
KERNEL = Kernel("torch.test", "rmsnorm", "torch", "for a test", "none:none", Support(("cpu",), RMSNORM.dtypes))
SMALL, HUGE = Point((7, 129), "float32"), Point((262145, 8192), "bfloat16")


def never(*args: object) -> None:
    raise AssertionError("a case without room was run")


@pytest.mark.parametrize(("op", "point", "gigabytes"), [(RMSNORM, HUGE, 55), (VECTOR_ADD, Point((2**31 + 4096,), "float16"), 86)])
def test_two_thousand_million_elements_fit_into_an_h200_by_the_estimate(op, point: Point, gigabytes: int) -> None:
    assert room.needed_bytes(op, op.workload(point)) == pytest.approx(gigabytes * 1e9, rel=0.1)


def test_the_estimate_grows_with_the_case() -> None:
    needs = [room.needed_bytes(RMSNORM, RMSNORM.workload(Point((rows, 4096), "bfloat16"))) for rows in (0, 1, 1000, 1_000_000)]
    assert needs == sorted(needs) and needs[-1] > 100 * 4096 * 1_000_000 // 10


def test_outputs_are_asked_of_the_contract_without_memory() -> None:
    (spec,) = room.output_specs(RMSNORM, RMSNORM.workload(Point((1 << 40, 8192), "bfloat16", "row_strided")))
    assert spec.shape == (1 << 40, 8192) and spec.contiguous


def test_a_workload_that_does_not_fit_is_unsupported_with_both_figures_and_is_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "free_bytes", lambda device: 12 * 10**9)
    result = check_workload(RMSNORM, KERNEL, Executable(never), RMSNORM.workload(HUGE), device=CPU)
    assert result.status is Status.UNSUPPORTED and not result.ok
    assert result.reason == "checking 262145x8192 bf16 needs 53.7 GB of memory, 12.0 GB are free"


def test_points_without_room_are_counted_with_their_reason_and_are_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "free_bytes", lambda device: 12 * 10**9)
    report = check_kernel(RMSNORM, KERNEL, Matrix("test", "rmsnorm", (SMALL, HUGE)), "cpu", build=lambda *_: Executable(rmsnorm))
    assert report.ok and report.no_room == 1 and report.unsupported == 1
    assert list(report.refusals) == ["checking 262145x8192 bf16 needs 53.7 GB of memory, 12.0 GB are free"]


def test_a_kernel_for_which_no_point_has_room_is_not_ok(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "free_bytes", lambda device: 12 * 10**9)
    report = check_kernel(RMSNORM, KERNEL, Matrix("test", "rmsnorm", (HUGE,)), "cpu", build=lambda *_: Executable(never))
    assert not report.ok and report.cases == 0 and report.no_room == 1
    assert report.reason.startswith("this machine has no room for any point: checking 262145x8192 bf16 needs 53.7 GB")


def test_memory_that_runs_out_in_the_checker_all_the_same_is_unsupported(monkeypatch: pytest.MonkeyPatch) -> None:
    def starved(*args: object) -> None:
        raise torch.OutOfMemoryError("tried to allocate 8 GiB")

    monkeypatch.setattr("kernelyard.verify.guards.surround", starved)
    result = check_workload(RMSNORM, KERNEL, Executable(rmsnorm), RMSNORM.workload(SMALL), device=CPU)
    assert result.status is Status.UNSUPPORTED
    assert result.reason == "can't be checked here: memory ran out in guarding the inputs: tried to allocate 8 GiB"


def test_this_machine_tells_what_is_free() -> None:
    free = room.free_bytes(CPU)
    assert free is None or 1 << 20 < free < 1 << 50


@pytest.mark.gpu
def test_a_gpu_tells_what_is_free() -> None:
    before = room.free_bytes(torch.device("cuda"))
    held = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    assert before is not None and 0.9 < (before - (room.free_bytes(torch.device("cuda")) or 0)) / held.nbytes < 1.1
