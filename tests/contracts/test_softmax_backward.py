"""softmax_backward: autograd's formula from the result, dead rows, and what its tolerance lets through."""

from __future__ import annotations

import pytest
import torch

from kernelyard import ops
from kernelyard.contracts import SOFTMAX, SOFTMAX_BACKWARD
from kernelyard.errors import InvalidInput
from kernelyard.registry.matrix import Point
from tests.contracts.cases import HALF, derivative, inputs, plain_torch, within


def test_the_reference_is_autograd_s_through_softmax_s() -> None:
    x, dy = torch.randn(5, 33).double(), torch.randn(5, 33).double()
    expected = derivative(SOFTMAX.reference, (x,), (dy,))
    torch.testing.assert_close(SOFTMAX_BACKWARD.reference(dy, SOFTMAX.reference(x)), expected[0])


def test_autograd_through_softmax_gives_the_reference_s_and_zeros_for_a_dead_row() -> None:
    x, dy = torch.randn(5, 33), torch.randn(5, 33)
    x[1] = -torch.inf
    with plain_torch():
        (dx,) = derivative(ops.softmax, (x,), (dy,))
    torch.testing.assert_close(dx.double(), derivative(SOFTMAX.reference, (x.double(),), (dy.double(),))[0], rtol=1e-5, atol=1e-6)
    assert dx[1].tolist() == [0.0] * 33


def test_typical_inputs_are_softmaxes_with_one_dead_row() -> None:
    _, y = inputs(SOFTMAX_BACKWARD, SOFTMAX_BACKWARD.workload(Point((7, 129), "float32")))
    torch.testing.assert_close(y.sum(-1), torch.tensor([0.0] + [1.0] * 6))


@pytest.mark.parametrize("dtype", ["float32", *HALF])
def test_torch_s_own_result_is_within_the_tolerance(dtype: str) -> None:
    for dims in ((1, 1), (33, 2), (7, 129), (33, 1000), (3, 32768)):
        workload = SOFTMAX_BACKWARD.workload(Point(dims, dtype))
        for seed in (0, 1):
            dy, y = args = inputs(SOFTMAX_BACKWARD, workload, seed)
            assert within(SOFTMAX_BACKWARD, workload, torch._softmax_backward_data(dy, y, -1, y.dtype), args), (dims, seed)


@pytest.mark.parametrize("dtype", ["float32", *HALF])
def test_a_gradient_without_its_sum_or_with_a_column_less_is_outside_the_tolerance(dtype: str) -> None:
    workload = SOFTMAX_BACKWARD.workload(Point((33, 1000), dtype))
    dy, y = args = inputs(SOFTMAX_BACKWARD, workload)
    short = (dy.float() * y.float())[..., :-1].sum(-1, keepdim=True)
    assert not within(SOFTMAX_BACKWARD, workload, dy * y, args)
    assert not within(SOFTMAX_BACKWARD, workload, (y.float() * (dy.float() - short)).to(y.dtype), args)


def test_what_is_not_like_the_result_is_refused_by_name() -> None:
    with pytest.raises(InvalidInput, match=r"softmax_backward: dy has shape \(3,\), y has \(2, 3\)"):
        SOFTMAX_BACKWARD.check((torch.ones(3), torch.ones(2, 3)))
    with pytest.raises(InvalidInput, match="softmax_backward: dy is torch.float32, y is torch.bfloat16"):
        SOFTMAX_BACKWARD.check((torch.ones(2, 3), torch.ones(2, 3).bfloat16()))


def test_the_cost_is_two_reads_and_a_write() -> None:
    assert SOFTMAX_BACKWARD.cost(SOFTMAX_BACKWARD.workload(Point((16, 64), "bfloat16"))).bytes == 3 * 16 * 64 * 2
