from __future__ import annotations

from types import ModuleType

import pytest
import torch

from kernelyard.contracts import RMSNORM, SOFTMAX, VECTOR_ADD
from kernelyard.plugins.eager import plugin
from kernelyard.registry.kernel import Kernel
from kernelyard.registry.op import Op

DEVICES = ("cpu", pytest.param("cuda", marks=pytest.mark.gpu))
every_op = pytest.mark.parametrize("op", [VECTOR_ADD, SOFTMAX, RMSNORM], ids=lambda op: op.name)


def kernel(op: Op, name: str = "torch.eager") -> Kernel:
    return next(k for k in plugin.kernels if k.op == op.name and k.name == name)


@pytest.mark.parametrize("device", DEVICES)
@every_op
def test_keeps_the_contract_whatever_the_layout_dtype_and_values(op: Op, device: str, agreement: ModuleType) -> None:
    assert agreement.faults(kernel(op), "smoke", device)["faults"] == {}


@every_op
def test_serves_every_point_of_the_contract(op: Op) -> None:
    points = op.matrix("correctness", "cpu").points
    assert [point for point in points if not kernel(op).support.fits(op.workload(point))] == []


def test_the_plain_baseline_refuses_to_serve_because_it_breaks_the_contract(agreement: ModuleType) -> None:
    plain = kernel(SOFTMAX, "torch.plain")
    args = (torch.full((1, 4), -torch.inf),)
    assert "NaN" in plain.support.fits(SOFTMAX.workload_of(args)).reason
    assert agreement.fault(plain, ("dead", SOFTMAX, args)) != ""


@every_op
@pytest.mark.parametrize("shape", [(0, 4), (4, 0), (0, 0)], ids=str)
def test_a_tensor_without_elements_gives_one(op: Op, shape: tuple[int, int], agreement: ModuleType) -> None:
    x = torch.empty(shape)
    args = {"softmax": (x,), "rmsnorm": (x, torch.ones(shape[-1]), 1e-6, 0.0, "fp32"), "vector_add": (x, x)}[op.name]
    assert agreement.fault(kernel(op), ("empty", op, args)) == ""


def test_vector_add_of_transposed_tensors_is_contiguous(agreement: ModuleType) -> None:
    assert agreement.fault(kernel(VECTOR_ADD), ("transposed", VECTOR_ADD, (torch.randn(4, 7).t(), torch.randn(4, 7).t()))) == ""
