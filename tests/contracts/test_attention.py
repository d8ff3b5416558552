"""attention: masks, shared heads, rows that see nothing, tolerances that bite, what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from kernelyard import ops
from kernelyard.contracts import ATTENTION
from kernelyard.errors import InvalidInput, KernelyardError
from kernelyard.registry.matrix import Point
from tests.contracts.cases import inputs, outputs, plain_torch, wide, within


@pytest.fixture(autouse=True)
def _plain_torch() -> Any:
    with plain_torch():
        yield


def heads(*sizes: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(*sizes, dtype=dtype)


def test_the_reference_is_torch_s_where_lengths_are_equal() -> None:
    q, k, v = heads(2, 6, 9, 8), heads(2, 2, 9, 8), heads(2, 2, 9, 8)
    for causal in (False, True):
        expected = scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)
        torch.testing.assert_close(ATTENTION.reference(q, k, v, None, causal, False)[0], expected)


@pytest.mark.parametrize(("q_heads", "kv_heads"), [(6, 2), (7, 1), (24, 1), (28, 4), (3, 3)])
def test_a_query_head_reads_the_head_of_its_group(q_heads: int, kv_heads: int) -> None:
    q, k, v = heads(1, q_heads, 3, 4), heads(1, kv_heads, 5, 4), heads(1, kv_heads, 5, 4)
    out, _ = ATTENTION.reference(q, k, v, None, False, False)
    for h in range(q_heads):
        shared = h // (q_heads // kv_heads)
        expected = scaled_dot_product_attention(q[:, h], k[:, shared], v[:, shared])
        torch.testing.assert_close(out[:, h], expected)


def test_causal_is_aligned_to_the_bottom_right() -> None:
    q, k = torch.zeros(1, 2, 2, 16), torch.zeros(1, 2, 5, 16)
    v = torch.eye(5, 16).expand(1, 2, 5, 16)
    out, lse = ops.attention(q, k, v, causal=True, return_lse=True)
    assert (out[0, 0, :, :5] > 0).tolist() == [[True] * 4 + [False], [True] * 5]
    torch.testing.assert_close(lse[0, 0], torch.tensor([4.0, 5.0]).log())
    assert (ops.attention(q[:, :, :1], torch.zeros(1, 2, 7, 16), torch.ones(1, 2, 7, 16), causal=True)[0] == 1).all()


def test_a_query_that_sees_no_key_gives_zeros_and_no_mass() -> None:
    q, k, v = (heads(1, 2, n, 8, dtype=torch.float32) for n in (5, 3, 3))
    out, lse = ops.attention(q, k, v, causal=True, return_lse=True)
    assert not out[:, :, :2].any() and lse[:, :, :2].isneginf().all() and lse[:, :, 2:].isfinite().all()
    out, lse = ops.attention(q, k[:, :, :0], v[:, :, :0], return_lse=True)
    assert out.shape == q.shape and not out.any() and lse.isneginf().all()
    assert ops.attention(q[:0], k[:0], v[:0])[0].shape == (0, 2, 5, 8)


def test_a_logarithm_is_returned_where_asked() -> None:
    q, k, v = (heads(1, 2, 5, 8, dtype=torch.bfloat16) for _ in "qkv")
    (out, none), (same, lse) = ops.attention(q, k, v), ops.attention(q, k, v, return_lse=True)
    assert none.shape == (0,) and none.dtype == lse.dtype == torch.float32 and lse.shape == (1, 2, 5)
    torch.testing.assert_close(out, same, rtol=0.016, atol=0.01)  # another kernel may serve, which rounds its weights
    torch.testing.assert_close(lse, torch.logsumexp(q.float() @ k.float().mT * 8**-0.5, -1))


@pytest.mark.parametrize(
    "wrong",
    [
        lambda q, k, v, scale: scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale, enable_gqa=True),
        lambda q, k, v, scale: ATTENTION.reference(q, k, v, None, True, False)[0],
        lambda q, k, v, scale: ATTENTION.reference(q, k[:, [1, 0]], v[:, [1, 0]], scale, True, False)[0],
        lambda q, k, v, scale: ATTENTION.reference(q, k[:, :, :-1], v[:, :, :-1], scale, False, False)[0],
    ],
    ids=["aligned to the top left", "scale left out", "heads shared otherwise", "a key left out"],
)
def test_an_attention_that_is_wrong_is_outside_the_tolerance(wrong: Any) -> None:
    workload = ATTENTION.workload(Point((1, 4, 2, 65, 129, 64), "bfloat16", statics=(("causal", True),)))
    args = inputs(ATTENTION, workload)
    q, k, v, scale, *_ = wide(args, torch.float32)
    assert within(ATTENTION, workload, tuple(t.bfloat16() for t in ATTENTION.reference(q, k, v, scale, True, False)), args)
    assert not within(ATTENTION, workload, (wrong(q, k, v, scale).bfloat16(), torch.empty(0)), args)


def test_float16_scores_past_its_range_are_right() -> None:
    q, k, v = torch.full((1, 1, 2, 64), 64.0).half(), torch.full((1, 1, 3, 64), 64.0).half(), torch.ones(1, 1, 3, 64).half()
    assert (ops.attention(q, k, v)[0] == 1).all()


# What is refused ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("q", "k", "told"),
    [
        ((1, 3, 2, 8), (1, 2, 2, 8), "3 query heads can't share 2 heads"),
        ((1, 33, 2, 8), (1, 2, 2, 8), "33 query heads can't share 2 heads"),
        ((1, 2, 2, 8), (1, 0, 2, 8), "can't share 0 heads"),
        ((1, 2, 2, 8), (1, 2, 2, 4), "head_dim 4"),
        ((2, 2, 8), (1, 2, 2, 8), r"Give q as \(batch, heads, length, head_dim\)"),
        ((2, 2, 2, 8), (1, 2, 2, 8), "2 sequences"),
    ],
)
def test_heads_that_do_not_fit_are_refused(q: tuple[int, ...], k: tuple[int, ...], told: str) -> None:
    with pytest.raises(InvalidInput, match=told):
        ops.attention(torch.ones(q), torch.ones(k), torch.ones(k))


@pytest.mark.parametrize("name", ["attention", "attention_decode"])
def test_a_gradient_is_a_clear_error(name: str) -> None:
    q, k = torch.ones(1, 1, 2, 8, requires_grad=True), torch.ones(1, 1, 2, 8)
    more = (torch.ones(1, dtype=torch.int32),) if name == "attention_decode" else ()
    with pytest.raises(KernelyardError, match=f"{name} has no gradient"):
        outputs(getattr(ops, name)(q, k, k, *more))[0].sum().backward()


def test_a_whole_graph_gives_what_eager_calls_do_also_when_lengths_change() -> None:
    compiled = torch.compile(lambda *args: ops.attention(*args, causal=True, return_lse=True), fullgraph=True, backend="aot_eager")
    for q_len, kv_len in ((3, 3), (1, 9), (5, 2)):
        q, k, v = (heads(2, n, length, 8, dtype=torch.float32) for n, length in ((4, q_len), (2, kv_len), (2, kv_len)))
        torch.testing.assert_close(compiled(q, k, v), ops.attention(q, k, v, causal=True, return_lse=True), rtol=0, atol=0)


@pytest.mark.parametrize("layout", ["bshd", "offset"])
def test_layouts_are_laid_out_as_their_names_say(layout: str) -> None:
    workload = ATTENTION.workload(Point((2, 6, 2, 5, 7, 8), "bfloat16", layout))
    q, k, v, *_ = inputs(ATTENTION, workload)
    for tensor in (q, k, v):
        inside = tensor.transpose(1, 2).is_contiguous() and not tensor.is_contiguous()
        assert inside == (layout == "bshd") and (tensor.data_ptr() % 16 != 0) == (layout == "offset")


def test_sums_in_float16_are_outside_the_tolerance() -> None:
    workload = ATTENTION.workload(Point((1, 1, 1, 2, 4096, 64), "float16"))
    q, k, v, scale, *_ = args = inputs(ATTENTION, workload)
    weights = torch.softmax((q.float() @ k.float().mT) * scale, -1)
    total = torch.zeros(1, 1, 2, 64, dtype=torch.float16)
    for key in range(4096):
        total += (weights[..., key, None] * v[:, :, key, None].float()).half()
    exact = (weights.half().float() @ v.float()).half()
    none = torch.empty(0)
    assert within(ATTENTION, workload, (exact, none), args) and not within(ATTENTION, workload, (total, none), args)


@pytest.mark.parametrize(("q_len", "kv_len"), [(5, 5), (3, 7), (7, 3), (1, 4), (4, 1), (0, 3), (3, 0)])
def test_the_work_of_a_causal_mask_is_that_of_the_pairs_seen(q_len: int, kv_len: int) -> None:
    seen = torch.ones(q_len, kv_len).tril(kv_len - q_len).sum().item()
    point = Point((2, 4, 2, q_len, kv_len, 8), "bfloat16", statics=(("causal", True),))
    assert ATTENTION.cost(ATTENTION.workload(point)).flops == 4 * 2 * 4 * seen * 8
