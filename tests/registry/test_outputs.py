"""`out=`: results written into given tensors, what those must be, and the quick test that recognises such a call again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import kernelyard
from kernelyard.errors import InvalidInput
from kernelyard.registry import recall
from kernelyard.registry.pins import active
from kernelyard.registry.registry import Registry
from tests.registry.fakes import make_kernel, make_op

Install = Callable[..., Registry]
TWO = make_op(
    "two",
    schema="(Tensor x, float factor=2.0) -> (Tensor, Tensor)",
    empty=lambda x, factor: (torch.empty(x.shape), torch.empty(x.shape)),
    reference=lambda x, factor: (x * factor, x),
    in_place=((0, "x"),),
)


@pytest.fixture(autouse=True)
def installed(install: Install) -> None:
    install(make_kernel("fake.one", 1, priority=1), make_kernel("fake.last", 3))


def test_the_result_is_written_there_and_is_what_comes_back() -> None:
    x, out = torch.ones(2, 4), torch.zeros(2, 4)
    for _ in range(3):
        out.zero_()
        assert kernelyard.ops.scale(x, out=out) is out and (out == 1).all()


def test_equal_calls_are_recognised_by_a_test_of_their_own() -> None:
    x, out = torch.ones(2, 4), torch.zeros(2, 4)
    kernelyard.ops.scale(x)
    kernelyard.ops.scale(x, out=out)
    served = active().served["scale"]
    assert len(served.calls) == len(served.writes) == 1
    kernelyard.ops.scale(torch.zeros(2, 4))
    kernelyard.ops.scale(x, out=torch.zeros(2, 4))
    assert len(served.calls) == len(served.writes) == 1
    kernelyard.ops.scale(torch.ones(3, 4))
    assert len(served.calls) == 2


def ran(*args: Any) -> bool:
    return True


@pytest.mark.parametrize(
    "other",
    [
        torch.ones(3, 4), torch.ones(2, 8)[:, :4], torch.ones(2, 4).double(), torch.ones(9)[1:].view(2, 4),
        torch.ones(2, 4, requires_grad=True), torch.nn.Parameter(torch.ones(2, 4)), torch._neg_view(torch.ones(2, 4)),
        torch.ones(2, 4, device="meta"), torch.ones(8), None, 3, [1.0],
    ],
)  # fmt: skip
def test_whatever_a_choice_may_depend_on_is_told_apart(other: Any) -> None:
    arguments = make_op().arguments
    test = recall.serving(arguments, (torch.ones(2, 4), 2.0), ran)
    assert test is not None
    assert test(torch.zeros(2, 4), 2.0)
    assert not test(other, 2.0)
    for factor in (3.0, 2, "2.0", None, torch.tensor(2.0)):
        assert not test(torch.zeros(2, 4), factor)


def test_outputs_have_to_lie_as_they_did() -> None:
    room = torch.zeros(4, 4)
    x, out = torch.ones(2, 4), torch.zeros(2, 4)
    apart = recall.serving(make_op().arguments, (x, 2.0), ran, (out,))
    within = recall.serving(make_op().arguments, (x, 2.0), ran, (x,))
    assert apart is not None and within is not None
    assert apart(torch.zeros(2, 4), x, 2.0) and not apart(x, x, 2.0) and not apart(room[1:3], room[:2], 2.0)
    assert within(x, x, 2.0) and not within(torch.zeros(2, 4), x, 2.0) and not within(x[:], x, 2.0)


def test_of_several_outputs_all_have_to_be_there_in_a_tuple() -> None:
    x, outs = torch.ones(2, 4), (torch.zeros(2, 4), torch.zeros(2, 4))
    test = recall.serving(make_op().arguments, (x, 2.0), ran, outs)
    assert test is not None
    assert test(outs, x, 2.0) and not test(outs[0], x, 2.0) and not test(outs[:1], x, 2.0) and not test(list(outs), x, 2.0)
    assert not test((outs[0], outs[0]), x, 2.0)


def test_modes_are_told_apart() -> None:
    test = recall.serving(make_op().arguments, (torch.ones(2, 4), 2.0), ran)
    assert test is not None
    with torch.autocast("cpu"):
        assert not test(torch.ones(2, 4), 2.0)
    with torch.inference_mode():
        assert not test(torch.ones(2, 4), 2.0)
    torch.func.vmap(lambda x: (x, [None for _ in [0] if test(x, 2.0)])[0])(torch.ones(3, 2, 4))


def test_whether_a_gradient_is_due_is_told_apart() -> None:
    leaf = torch.ones(2, 4, requires_grad=True)
    due = recall.serving(make_op().arguments, (leaf, 2.0), ran)
    with torch.no_grad():
        not_due = recall.serving(make_op().arguments, (leaf, 2.0), ran)
        assert due is not None and not_due is not None
        assert not_due(leaf, 2.0) and not due(leaf, 2.0)
    assert due(leaf, 2.0) and not not_due(leaf, 2.0)


def test_with_ever_new_signatures_no_more_tests_are_made() -> None:
    from kernelyard.registry import operator

    for rows in range(1, operator.MOST_TESTS_MADE + 10):
        kernelyard.ops.scale(torch.ones(rows, 4))
    served = active().served["scale"]
    assert served.tests_made == operator.MOST_TESTS_MADE and len(served.calls) == operator.MOST_TESTS
    assert (kernelyard.ops.scale(torch.ones(1, 4)) == 1).all()


X = torch.ones(2, 4)


@pytest.mark.parametrize(
    "out, reason",
    [
        (torch.zeros(2, 5), r"out has shape \(2, 5\). Give shape \(2, 4\)"),
        (torch.zeros(2, 4, dtype=torch.float64), "out has dtype torch.float64"),
        (torch.zeros(2, 4, device="meta"), "out has device meta"),
        (torch.zeros(4, 2).t(), r"out has strides \(1, 2\). Give it contiguous"),
        (X, "out overlaps x. Give it memory of its own"),
        ((torch.zeros(2, 4),) * 2, r"out holds 2 tensor\(s\). Give one tensor"),
        (5, "out holds int"),
        (torch.zeros(2, 4, requires_grad=True), "out= has no gradient"),
    ],
)
def test_what_can_not_be_written_to_is_refused_by_name(out: Any, reason: str) -> None:
    kernelyard.ops.scale(X, out=torch.zeros(2, 4))  # a test exists for a good call
    with pytest.raises(InvalidInput, match=reason):
        kernelyard.ops.scale(X, out=out)


def test_a_result_may_overwrite_what_the_op_declares_and_only_that_very_tensor(install: Install) -> None:
    install(make_kernel("fake.one", "fill_two", op="two"), op=TWO)
    buffer = torch.ones(4, 4)
    x = buffer[:2]
    assert kernelyard.ops.two(x, out=(x, torch.zeros(2, 4)))[0] is x
    for bad, reason in (
        ((torch.zeros(2, 4), x), r"out\[1\] overlaps x"),
        ((buffer[1:3], torch.zeros(2, 4)), r"out\[0\] overlaps x. Only these may be the very same tensor: out\[0\] and x"),
        ((buffer[2:], buffer[2:]), "two results overlap"),
    ):
        with pytest.raises(InvalidInput, match=reason):
            kernelyard.ops.two(x, out=bad)


def test_a_compiled_call_writes_there_too() -> None:
    torch._dynamo.reset()
    compiled = torch.compile(lambda x, out: kernelyard.ops.scale(x, out=out), backend="aot_eager", fullgraph=True)
    out = torch.zeros(2, 4)
    compiled(X, out)
    assert (out == 1).all()
