"""A kernel that works on a stream of its own is caught; needs a GPU."""

from __future__ import annotations

import pytest
import torch

from kernelyard.contracts.rmsnorm import RMSNORM
from kernelyard.registry.backend import Executable
from kernelyard.registry.kernel import Kernel, Support
from kernelyard.registry.op import Point
from kernelyard.verify.defences import ALL
from kernelyard.verify.oracle import check_workload
from kernelyard.verify.outcome import CaseResult
from tests.wrong_kernels.catalogue import rmsnorm

KERNEL = Kernel("torch.stream", "rmsnorm", "torch", "for a test", "none:none", Support(("cuda",), RMSNORM.dtypes))


def on_its_own_stream() -> Executable:
    own = torch.cuda.Stream()

    def call(*args):
        with torch.cuda.stream(own):
            return rmsnorm(*args)

    return Executable(call)


def check(executable: Executable, defences: frozenset[str] = ALL) -> CaseResult:
    workload = RMSNORM.workload(Point((64, 1024), "bfloat16"), "cuda")
    return check_workload(RMSNORM, KERNEL, executable, workload, device=torch.device("cuda"), defences=defences)


@pytest.mark.gpu
def test_kernel_on_a_stream_of_its_own_is_caught_by_that_defence_alone() -> None:
    result = check(on_its_own_stream())
    assert not result.ok and "on a side stream" in result.reason
    assert check(on_its_own_stream(), ALL - {"stream"}).ok


@pytest.mark.gpu
def test_kernel_on_the_callers_stream_passes() -> None:
    assert check(Executable(rmsnorm)).ok
