"""That quack's matmul and FlashAttention-4 are called as they want it where typical inputs do not show it: scales, layouts, NaN."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

from kernelyard.registry.kernel import Kernel
from kernelyard.registry.matrix import GIVEN
from kernelyard.registry.op import Point
from kernelyard.registry.registry import current
from kernelyard.registry.spec import Scalar
from tests.peers.test_called import built

Peers = Mapping[str, Kernel]
Statics = tuple[tuple[str, Scalar], ...]
HALF = {"rtol": 2**-7, "atol": 2**-9}


def result_and_meaning(kernel: Kernel, args: tuple[Any, ...]) -> tuple[Any, Any]:
    """What a call gives, and the reference in float32."""
    op = current().op(kernel.op)
    wide = (arg.float() if isinstance(arg, Tensor) and arg.is_floating_point() else arg for arg in args)
    return built(op, kernel, op.workload_of(args)).call(*args), op.reference(*wide)


def inputs(op: str, dims: tuple[int, ...], statics: Statics = (), layout: str = "contiguous") -> tuple[Any, ...]:
    contract = current().op(op)
    return contract.inputs(contract.workload(Point(dims, "bfloat16", layout, statics), "cpu"), torch.Generator().manual_seed(1))


@pytest.mark.parametrize("statics", [(("bias", GIVEN),), (("activation", "silu"), ("bias", GIVEN)), (("residual", GIVEN),)])
@pytest.mark.parametrize("scale", [1.0, 0.75, -3.0])
def test_quacks_scale_is_of_the_bias_and_the_activated_too(stood_in: Peers, statics: Statics, scale: float):
    a, b, bias, residual, _, *rest = inputs("matmul", (1, 16, 64, 128), statics)
    got, meant = result_and_meaning(stood_in["quack.matmul"], (a, b, bias, residual, scale, *rest))
    torch.testing.assert_close(got.float(), meant, **HALF)


@pytest.mark.parametrize("activation", ["relu", "gelu", "gelu_tanh", "silu"])
def test_quacks_names_of_activations_mean_the_contracts(stood_in: Peers, activation: str):
    """So close that the two forms of gelu differ, below -2."""
    got, meant = result_and_meaning(stood_in["quack.matmul"], inputs("matmul", (1, 16, 64, 128), (("activation", activation),)))
    torch.testing.assert_close(got.float(), meant, rtol=2**-8, atol=2**-16)


def test_quack_takes_leading_dimensions_as_rows_and_sizes_of_1_with_any_stride(stood_in: Peers):
    a, b, *rest = inputs("matmul", (1, 16, 64, 128))
    for rows in (a.view(2, 1, 8, 128), a[:1].as_strided((1, 128), (3, 1)), a.view(2, 8, 128)[None]):
        got, meant = result_and_meaning(stood_in["quack.matmul"], (rows, b, *rest))
        torch.testing.assert_close(got.float(), meant, **HALF)


def test_quacks_configs_are_kept_for_it_knows_them_by_address(stood_in: Peers):
    gemm_config = __import__("kernelyard_quack.matmul", fromlist=["gemm_config"]).gemm_config
    one = gemm_config(256, 192, False, "1x2", True)
    assert gemm_config(256, 192, False, "1x2", True) is one
    assert (one.tile_m, one.tile_n, one.pingpong, one.cluster_m, one.cluster_n, one.swap_ab) == (256, 192, False, 1, 2, True)
    assert not one.is_dynamic_persistent and one.device_capacity == 9


@pytest.mark.parametrize("scale", [None, 0.0, -0.5, 0.3])
@pytest.mark.parametrize("causal", [False, True])
def test_fa4_gets_scales_that_it_can_take(stood_in: Peers, scale: float | None, causal: bool):
    q, k, v, *_ = inputs("attention", (2, 4, 2, 5, 9, 64), layout="bshd")
    (out, lse), (out_meant, lse_meant) = result_and_meaning(stood_in["fa4.attention"], (q, k, v, scale, causal, True))
    torch.testing.assert_close(out.float(), out_meant, **HALF)
    torch.testing.assert_close(lse, lse_meant)


def test_fa4s_logarithm_of_a_row_with_a_nan_is_one(stood_in: Peers):
    q, k, v, *rest = inputs("attention", (2, 4, 2, 5, 9, 64), (("return_lse", True),))
    q[0, 1, 2, 3] = torch.nan
    v[1, :, 4, 0] = torch.nan
    q[0, 3, 0] = 0.0
    q[0, 3, 0, 0], k[0, 1, :, 0] = torch.inf, -1.0  # scores that are all -inf
    (_, lse), (_, meant) = result_and_meaning(stood_in["fa4.attention"], (q, k, v, *rest))
    torch.testing.assert_close(lse, meant, equal_nan=True)
    assert lse.isnan().sum() == 1 and lse[0, 3, 0] == -torch.inf


def test_fa4_is_given_no_lse_that_nobody_asked_for(stood_in: Peers, monkeypatch: pytest.MonkeyPatch):
    module, given = sys.modules["flash_attn.cute.interface"], list[Tensor | None]()
    forward = module._flash_attn_fwd
    monkeypatch.setattr(module, "_flash_attn_fwd", lambda *args, lse, **rest: (given.append(lse), forward(*args, lse=lse, **rest)))
    _, lse = result_and_meaning(stood_in["fa4.attention"], inputs("attention", (2, 4, 2, 5, 9, 64)))[0]
    assert lse.shape == (0,) and given and set(given) == {None}


@pytest.mark.parametrize(("q_len", "layout"), [(1, "contiguous"), (1, "bshd"), (3, "bshd")])
def test_fa4s_decode_means_the_contract_where_no_nan_lies_past_a_length(stood_in: Peers, q_len: int, layout: str):
    q, k, v, lengths, table, scale = inputs("attention_decode", (3, 4, 2, q_len, 1024, 64, 0), layout=layout)
    lengths.copy_(torch.tensor([1024, 7, 300]))
    got, meant = result_and_meaning(stood_in["fa4.attention_decode"], (q, k, v, lengths, table, scale))
    torch.testing.assert_close(got.float(), meant, **HALF)
