"""That the plugins call the packages' functions as those want it: against stand-ins with the same signatures, on a CPU.

A right result of a stand-in, by the op's own checker, means right arguments, views and results.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace

import pytest
import torch

from kernelyard.registry.backend import Executable
from kernelyard.registry.kernel import Kernel
from kernelyard.registry.lazy import load
from kernelyard.registry.op import Op, Point
from kernelyard.registry.registry import current
from kernelyard.registry.spec import Workload
from kernelyard.verify.oracle import check_workload

Peers = Mapping[str, Kernel]
QUACKS = ("rmsnorm", "rmsnorm_backward", "add_rmsnorm", "add_rmsnorm_backward", "softmax_backward", "rope")
LIGERS = (*QUACKS, "swiglu", "swiglu_backward")
NAMES = [*(f"quack.{op}" for op in (*QUACKS, "matmul")), *(f"liger.{op}" for op in LIGERS), "fa4.attention"]


def built(op: Op, kernel: Kernel, workload: Workload) -> Executable:
    config = kernel.space.default_for(workload)
    executable = load(f"kernelyard_{kernel.backend}.build:builder").build(op, kernel, workload, config)
    assert isinstance(executable, Executable)
    return executable


def small(op: Op, kernel: Kernel) -> list[Workload]:
    """Of the correctness matrix as the kernel supports it: one point of each meaning and layout, and a few more of the usual kind."""
    points = [p for p in op.matrix("correctness", "cpu").points if max(p.dims) <= 1024 and p.dims[0] <= (33 if p.statics else 7)]
    fitting = [(p, w) for p in points if kernel.support.fits(replace(w := op.workload(p, "cpu"), device="cuda"))]
    each = {(p.statics, p.layout): w for p, w in fitting}
    usual = [w for p, w in fitting if not p.statics and p.layout == "contiguous"]
    return [*usual[:: max(len(usual) // 3, 1)], *each.values()]


@pytest.mark.parametrize("name", NAMES)
def test_what_comes_back_is_what_the_op_means(stood_in: Peers, name: str):
    kernel = stood_in[name]
    op = current().op(kernel.op)
    workloads = small(op, kernel)
    assert len(workloads) >= 4
    for workload in workloads:
        result = check_workload(op, kernel, built(op, kernel, workload), workload, device=torch.device("cpu"))
        assert result.ok, f"{workload.key()}: {result.reason}"


@pytest.mark.parametrize("name", ["liger.softmax", "quack.softmax"])
def test_a_softmax_that_serves_no_call_can_still_be_called(stood_in: Peers, name: str):
    op = current().op("softmax")
    workload = op.workload(Point((7, 64), "bfloat16"), "cpu")
    result = check_workload(op, stood_in[name], built(op, stood_in[name], workload), workload, device=torch.device("cpu"))
    assert result.ok, result.reason


def test_ligers_gradient_of_swiglu_leaves_its_inputs_as_they_were(stood_in: Peers):
    op, kernel = current().op("swiglu_backward"), stood_in["liger.swiglu_backward"]
    args = op.inputs(workload := op.workload(Point((7, 64), "float32"), "cpu"), torch.Generator())
    before = [arg.clone() for arg in args]
    built(op, kernel, workload).call(*args)
    assert all(torch.equal(now, then) for now, then in zip(args, before, strict=True))


def test_quack_writes_to_misaligned_results_by_way_of_its_own(stood_in: Peers):
    op, kernel = current().op("rmsnorm"), stood_in["quack.rmsnorm"]
    args = op.inputs(workload := op.workload(Point((7, 64), "float32"), "cpu"), torch.Generator())
    executable = built(op, kernel, workload)
    assert executable.into is not None
    out = torch.empty(7 * 64 + 1)[1:].view(7, 64)
    executable.into((out,), *args)
    assert torch.equal(out, executable.call(*args))


@pytest.mark.parametrize("place", [0, 1])
def test_quacks_sum_may_be_written_over_what_is_summed(stood_in: Peers, place: int):
    op, kernel = current().op("add_rmsnorm"), stood_in["quack.add_rmsnorm"]
    args = op.inputs(workload := op.workload(Point((7, 64), "bfloat16"), "cpu"), torch.Generator())
    executable = built(op, kernel, workload)
    assert executable.into is not None
    y, r = executable.call(*args)
    outputs = [torch.empty_like(y), torch.empty_like(r)]
    outputs[place] = args[0]
    executable.into(tuple(outputs), *args)
    assert torch.equal(outputs[0], y) and torch.equal(outputs[1], r)


def test_a_call_that_the_package_refuses_is_a_failed_build(stood_in: Peers, monkeypatch: pytest.MonkeyPatch):
    """What would otherwise raise in the call that a caller makes."""

    def refuse(*args: object, **rest: object) -> None:
        raise ValueError("width not divisible")

    monkeypatch.setattr(sys.modules["quack.rmsnorm"], "_rmsnorm_fwd", refuse)
    op = current().op("rmsnorm")
    with pytest.raises(ValueError, match="width not divisible"):
        built(op, stood_in["quack.rmsnorm"], op.workload(Point((7, 64), "float32"), "cpu"))
