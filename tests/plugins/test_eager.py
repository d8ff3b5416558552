from __future__ import annotations

import itertools
from types import ModuleType
from typing import Any

import pytest
import torch

from kernelyard.contracts import RMSNORM, SOFTMAX, VECTOR_ADD
from kernelyard.plugins.eager import plugin
from kernelyard.registry.kernel import Kernel
from kernelyard.registry.op import Op, Point
from kernelyard.registry.spec import Workload

DEVICES = ("cpu", pytest.param("cuda", marks=pytest.mark.gpu))
NAN, INF = float("nan"), float("inf")


def kernel(op: Op, name: str = "torch.eager") -> Kernel:
    return next(k for k in plugin.kernels if k.op == op.name and k.name == name)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("op", [VECTOR_ADD, SOFTMAX, RMSNORM], ids=lambda op: op.name)
def test_keeps_the_contract_on_the_smoke_matrix(op: Op, device: str, agreement: ModuleType) -> None:
    faults = {w.key(): agreement.fault(op, kernel(op), w) for w in agreement.workloads(op, "smoke", device)}
    assert {key: text for key, text in faults.items() if text} == {}


@pytest.mark.parametrize(
    ("casting", "dtype", "weight"),
    list(itertools.product(("fp32", "llama"), ("float32", "bfloat16"), ("float32", "bfloat16", None))),
)
def test_rmsnorm_takes_a_weight_of_another_dtype_or_none(casting: str, dtype: str, weight: str | None, agreement: ModuleType) -> None:
    x = torch.randn(5, 96).to(getattr(torch, dtype))
    w = None if weight is None else torch.randn(96).to(getattr(torch, weight))
    args = (x, w, 1e-6, 1.0, casting)
    assert agreement.fault(RMSNORM, kernel(RMSNORM), RMSNORM.workload_of(args), args=args) == ""


@pytest.mark.parametrize("layout", ["contiguous", "transposed", "row_strided", "broadcast"])
@pytest.mark.parametrize("op", [SOFTMAX, RMSNORM], ids=lambda op: op.name)
def test_any_strides_give_a_contiguous_result(op: Op, layout: str, agreement: ModuleType) -> None:
    assert agreement.fault(op, kernel(op), op.workload(Point((6, 40), "float32", layout))) == ""


def test_vector_add_of_transposed_tensors_is_contiguous(agreement: ModuleType) -> None:
    args = (torch.randn(4, 7).t(), torch.randn(4, 7).t())
    assert agreement.fault(VECTOR_ADD, kernel(VECTOR_ADD), VECTOR_ADD.workload_of(args), args=args) == ""


SPECIAL = torch.tensor([[1.0, 2.0, 3.0], [-INF, -INF, -INF], [NAN, -INF, 0.0], [INF, 0.0, 1.0], [-INF, 0.0, -INF]])


@pytest.mark.parametrize("device", DEVICES)
def test_softmax_of_a_row_of_all_minus_inf_is_zero_and_nan_spreads_over_its_row(device: str, agreement: ModuleType) -> None:
    args = (SPECIAL.to(device),)
    assert agreement.fault(SOFTMAX, kernel(SOFTMAX), SOFTMAX.workload_of(args), args=args) == ""


def test_the_plain_baseline_refuses_to_serve_because_it_breaks_the_contract(agreement: ModuleType) -> None:
    plain = kernel(SOFTMAX, "torch.plain")
    args = (SPECIAL,)
    workload = SOFTMAX.workload_of(args)
    assert "NaN" in plain.support.fits(workload).reason
    assert agreement.fault(SOFTMAX, plain, workload, args=args) != ""


@pytest.mark.parametrize("op", [SOFTMAX, RMSNORM, VECTOR_ADD], ids=lambda op: op.name)
def test_empty_tensors_of_every_kind(op: Op, agreement: ModuleType) -> None:
    def workload_and_args(shape: tuple[int, ...]) -> tuple[Workload, tuple[Any, ...]]:
        x = torch.empty(shape)
        args = {"softmax": (x,), "rmsnorm": (x, torch.ones(shape[-1]), 1e-6, 0.0, "fp32"), "vector_add": (x, x)}[op.name]
        return op.workload_of(args), args

    for shape in ((0, 4), (4, 0), (0, 0)):
        workload, args = workload_and_args(shape)
        assert agreement.fault(op, kernel(op), workload, args=args) == ""
