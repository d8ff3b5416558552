from __future__ import annotations

from types import ModuleType

import pytest
import torch

from kernelyard.contracts import ADD_RMSNORM_BACKWARD, RMSNORM_BACKWARD, ROPE, SOFTMAX, SWIGLU, VECTOR_ADD
from kernelyard.contracts import plugin as contracts
from kernelyard.plugins.eager.plugin import plugin
from kernelyard.registry.kernel import Kernel
from kernelyard.registry.lazy import load
from kernelyard.registry.matrix import ABSENT
from kernelyard.registry.op import Op, Point
from tests.contracts.cases import dims
from tests.devices import on_each_device

every_op = pytest.mark.parametrize("op", contracts.ops, ids=lambda op: op.name)


def kernel(op: Op, name: str = "torch.eager") -> Kernel:
    return next(k for k in plugin.kernels if k.op == op.name and k.name == name)


@on_each_device
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
    args = op.inputs(op.workload(Point(dims(op, *shape), "float32")), torch.Generator().manual_seed(0))
    assert agreement.fault(kernel(op), ("empty", op, args)) == ""


@pytest.mark.parametrize("op", [op for op in contracts.ops if op.baseline], ids=lambda op: op.name)
def test_what_users_have_is_timed_and_serves_nothing(op: Op) -> None:
    plain = kernel(op, op.baseline)
    workload = op.workload(Point((8,) * len(op.dims), "float32"), plain.support.devices[0])
    assert plain.priority < 0 and plain.support.fits(workload).timed


@pytest.mark.parametrize("op", [SWIGLU, ROPE], ids=lambda op: op.name)
@pytest.mark.parametrize("which", [0, 1])
def test_what_models_have_differs_by_roundings_alone(op: Op, which: int) -> None:
    statics: dict[str, tuple[tuple[tuple[str, str | bool], ...], ...]] = {
        "swiglu": ((), (("b", ABSENT),)),
        "rope": ((), (("inverse", True),)),
    }
    workload = op.workload(Point((7, 4, 64)[-len(op.dims) :], "float32", statics=statics[op.name][which]))
    args = op.inputs(workload, torch.Generator().manual_seed(0))
    plain, eager = (load(kernel(op, name).entry)(workload, {})(*args) for name in ("torch.plain", "torch.eager"))
    torch.testing.assert_close(plain, eager, rtol=1e-5, atol=1e-6)


@pytest.mark.gpu
@pytest.mark.parametrize("op", [RMSNORM_BACKWARD, ADD_RMSNORM_BACKWARD], ids=lambda op: op.name)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_torch_s_fused_gradient_is_that_of_the_contract_but_for_roundings(op: Op, dtype: str) -> None:
    workload = op.workload(Point((33, 1024), dtype), "cuda")
    args = op.inputs(workload, torch.Generator("cuda").manual_seed(0))
    plain, eager = (load(kernel(op, name).entry)(workload, {})(*args) for name in ("torch.plain", "torch.eager"))
    torch.testing.assert_close(plain, eager, rtol=2e-2 if dtype == "bfloat16" else 1e-4, atol=2e-2 if dtype == "bfloat16" else 1e-4)


def test_a_gradient_takes_a_row_that_repeats_and_a_weight_of_another_dtype(agreement: ModuleType) -> None:
    dy, x = torch.ones(1, 1).bfloat16().expand(5, 64), torch.randn(5, 64).bfloat16()
    for w in (torch.rand(64), None):
        case = ("expanded", RMSNORM_BACKWARD, (dy, x, w, 0.1, 1.0, "llama"))
        assert agreement.fault(kernel(RMSNORM_BACKWARD), case) == ""


def test_vector_add_of_transposed_tensors_is_contiguous(agreement: ModuleType) -> None:
    assert agreement.fault(kernel(VECTOR_ADD), ("transposed", VECTOR_ADD, (torch.randn(4, 7).t(), torch.randn(4, 7).t()))) == ""
