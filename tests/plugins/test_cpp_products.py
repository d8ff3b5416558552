"""The C++ kernels of products and attention keep their ops' contracts: every config, odd sizes, gaps, guards, threads."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
import torch

from kernelyard.contracts import ATTENTION_DECODE, LINEAR_SWIGLU, MATMUL
from kernelyard.contracts.matmul import ACTIVATIONS
from kernelyard.plugins.cpp import plugin as cpp
from kernelyard.plugins.cpp.probe import available
from kernelyard.registry.kernel import Kernel
from kernelyard.registry.matrix import GIVEN
from kernelyard.registry.op import Op, Point
from kernelyard.registry.spec import Config
from tests.contracts.cases import inputs, within

pytestmark = pytest.mark.skipif(not available("cpu"), reason=available("cpu").reason)

BY_OP = {kernel.op: kernel for kernel in cpp.plugin.kernels if kernel.op in ("matmul", "linear_swiglu", "attention_decode")}
OPS = {op.name: op for op in (MATMUL, LINEAR_SWIGLU, ATTENTION_DECODE)}
every = pytest.mark.parametrize("op", OPS.values(), ids=OPS)
SHAPES = {
    "matmul": [Point((1, m, n, k), "float32", "linear") for m, n, k in ((1, 1, 1), (3, 67, 33), (16, 130, 600), (7, 64, 0), (0, 5, 4))],
    "linear_swiglu": [Point(dims, "float32") for dims in ((1, 1, 1), (3, 67, 33), (16, 130, 600), (7, 64, 0), (0, 5, 4))],
    "attention_decode": [
        Point(dims, "float32")
        for dims in (
            (1, 1, 1, 1, 1, 1, 0),
            (3, 6, 2, 1, 130, 64, 0),
            (2, 20, 1, 2, 70, 33, 0),
            (2, 8, 2, 3, 192, 128, 64),
            (3, 2, 2, 2, 15, 16, 5),
        )
    ],
}
"""More query rows for a KV head than are taken at once, too: 20 heads of 2 new tokens."""


def outputs(op: Op, kernel: Kernel, args: tuple[Any, ...], config: Config) -> torch.Tensor:
    """The output, written over NaN between guards that must survive."""
    (like,) = op.empty(*args)
    guarded = torch.full((like.numel() + 129,), 123.0, dtype=like.dtype)
    out = guarded[65 : 65 + like.numel()].view(like.shape).fill_(torch.nan)
    into = cpp.CPP.builder().build(op, kernel, op.workload_of(args), config).into
    assert into is not None
    into((out,), *args)
    assert bool((guarded[:65] == 123).all() and (guarded[-64:] == 123).all()), "stored outside an output"
    return out


@every
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_every_config_is_right_at_odd_sizes(op: Op, dtype: str) -> None:
    kernel = BY_OP[op.name]
    for point in SHAPES[op.name]:
        workload = op.workload(replace(point, dtype=dtype))
        args = inputs(op, workload)
        for config in kernel.space.configs(workload):
            assert within(op, workload, outputs(op, kernel, args, config), args), (point.dims, config)


@every
def test_the_number_of_threads_does_not_change_a_bit(op: Op) -> None:
    kernel, point = BY_OP[op.name], SHAPES[op.name][1]
    workload = op.workload(point)
    args, config = inputs(op, workload), {**kernel.space.default_for(workload), "threads": 1}
    assert torch.equal(outputs(op, kernel, args, config), outputs(op, kernel, args, {**config, "threads": 3}))


@pytest.mark.parametrize(("activation", "dtype"), list(itertools.product(ACTIVATIONS, ("float32", "bfloat16"))))
def test_what_follows_a_product_is_done_in_its_order(activation: str, dtype: str) -> None:
    statics = (("activation", activation), ("bias", GIVEN), ("residual", GIVEN))
    workload = MATMUL.workload(Point((1, 5, 70, 33), dtype, "linear", statics))
    args = inputs(MATMUL, workload)
    assert within(MATMUL, workload, outputs(MATMUL, BY_OP["matmul"], args, {"threads": 1, "streams": 4}), args)


def test_activations_hold_from_their_flat_ends_to_their_steep_middle() -> None:
    x = torch.cat((torch.linspace(-30, 30, 6001), torch.tensor([0.0, -0.0, 1e-30, -1e-30, 300.0, -300.0])))
    for activation in ACTIVATIONS:
        args = (torch.ones(1, 1), x[None, :].clone(), None, None, 1.0, activation, "ieee")
        out = outputs(MATMUL, BY_OP["matmul"], args, {"threads": 1, "streams": 2})
        expected = MATMUL.reference(torch.ones(1, 1).double(), x[None, :].double(), None, None, 1.0, activation, "ieee")
        torch.testing.assert_close(out.double(), expected, rtol=2e-6, atol=3e-7)


def test_rows_of_a_and_of_the_weight_may_have_gaps_and_leading_dimensions() -> None:
    a, w = torch.randn(2, 3, 40)[:, ::2, :33], torch.randn(9, 50)[:, 7:40]
    args = (a, w.T, None, None, 1.0, "none", "ieee")
    out = outputs(MATMUL, BY_OP["matmul"], args, {"threads": 1, "streams": 2})
    torch.testing.assert_close(out, a @ w.T)


def test_what_is_no_linear_layer_is_refused_with_its_strides() -> None:
    workload = MATMUL.workload(Point((1, 3, 5, 7), "float32"))
    answer = BY_OP["matmul"].support.fits(workload)
    assert not answer and "transpose of a weight" in answer.reason and "(5, 1)" in answer.reason


def test_a_cache_may_be_laid_out_by_tokens_and_lie_in_a_larger_one() -> None:
    pool = torch.randn(3, 40, 2, 64)
    k, v = pool[:, :33].transpose(1, 2), pool[:, 7:].transpose(1, 2)
    q, lengths = torch.randn(3, 1, 4, 64).transpose(1, 2), torch.tensor([33, -2, 900], dtype=torch.int32)
    args = (q, k, v, lengths, None, None)
    out = outputs(ATTENTION_DECODE, BY_OP["attention_decode"], args, {"threads": 1, "parts": 2, "streams": 4})
    torch.testing.assert_close(out, ATTENTION_DECODE.reference(*args))


def test_blocks_outside_of_the_cache_are_never_read() -> None:
    k, v = torch.randn(4, 2, 16, 64), torch.randn(4, 2, 16, 64)
    table = torch.tensor([[2, 1 << 30, -5, 0]], dtype=torch.int32)
    args = (torch.randn(1, 4, 1, 64), k, v, torch.tensor([64], dtype=torch.int32), table, None)
    out = outputs(ATTENTION_DECODE, BY_OP["attention_decode"], args, {"threads": 1, "parts": 1, "streams": 4})
    torch.testing.assert_close(out, ATTENTION_DECODE.reference(*args))
