"""attention and attention_decode: masks, shared heads, rows that see nothing, caches of both kinds, what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from kernelyard import ops
from kernelyard.contracts import ATTENTION, ATTENTION_DECODE
from kernelyard.errors import InvalidInput, KernelyardError
from kernelyard.registry.matrix import Point
from tests.contracts.cases import inputs, plain_torch, wide, within


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
    assert none.shape == (0,) and none.dtype == lse.dtype == torch.float32 and lse.shape == (1, 2, 5) and torch.equal(out, same)


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


# The cache ---------------------------------------------------------------------------------------------


def paged(k: torch.Tensor, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A cache (batch, heads, capacity, dim) in blocks of `size` tokens, last first, and its table."""
    batch, kv_heads, capacity, dim = k.shape
    blocks = k.view(batch, kv_heads, capacity // size, size, dim).transpose(1, 2).reshape(-1, kv_heads, size, dim)
    return blocks.flip(0), torch.arange(blocks.shape[0], dtype=torch.int32).flip(0).view(batch, -1)


@pytest.mark.parametrize("q_len", [1, 3])
def test_a_sequence_is_attended_as_far_as_its_length(q_len: int) -> None:
    q, k, v = heads(4, 6, q_len, 8), heads(4, 2, 12, 8), heads(4, 2, 12, 8)
    lengths = torch.tensor([12, 5, 3, 4], dtype=torch.int32)
    out = ATTENTION_DECODE.reference(q, k, v, lengths, None, None)
    for b, n in enumerate(lengths.tolist()):
        expected, _ = ATTENTION.reference(q[b : b + 1], k[b : b + 1, :, :n], v[b : b + 1, :, :n], None, True, False)
        torch.testing.assert_close(out[b : b + 1], expected)


def test_lengths_outside_of_the_cache_count_as_its_ends() -> None:
    q, k, v = (heads(4, 2, n, 8, dtype=torch.float32) for n in (1, 6, 6))
    out = ops.attention_decode(q, k, v, torch.tensor([0, -3, 7, 6], dtype=torch.int32))
    assert not out[:2].any()
    torch.testing.assert_close(out[2:], ops.attention_decode(q, k, v, torch.full((4,), 6, dtype=torch.int32))[2:], rtol=0, atol=0)


@pytest.mark.parametrize("size", [1, 4])
def test_a_paged_cache_is_the_contiguous_one_in_blocks(size: int) -> None:
    q, k, v = heads(3, 4, 2, 8), heads(3, 2, 8, 8), heads(3, 2, 8, 8)
    lengths = torch.tensor([8, 5, 2], dtype=torch.int32)
    (blocks_k, table), (blocks_v, _) = paged(k, size), paged(v, size)
    expected = ATTENTION_DECODE.reference(q, k, v, lengths, None, 0.3)
    torch.testing.assert_close(ATTENTION_DECODE.reference(q, blocks_k, blocks_v, lengths, table, 0.3), expected)


def test_tokens_of_blocks_that_are_none_of_the_cache_s_are_left_out() -> None:
    q, k, v = heads(1, 1, 1, 8, dtype=torch.float32), *(heads(2, 1, 4, 8, dtype=torch.float32) for _ in "kv")
    lengths = torch.tensor([12], dtype=torch.int32)
    table = torch.tensor([[1, 7, -1]], dtype=torch.int32)
    expected = ops.attention_decode(q, k[1:], v[1:], torch.tensor([4], dtype=torch.int32))
    torch.testing.assert_close(ops.attention_decode(q, k, v, lengths, table), expected)
    torch.testing.assert_close(ATTENTION_DECODE.reference(q, k, v, lengths, table, None), expected)
    assert not ops.attention_decode(q, k[:0], v[:0], lengths, table).any()


def test_typical_sequences_differ_in_length_but_where_speed_is_measured() -> None:
    for capacity, alike in ((130, False), (1024, True)):
        lengths = inputs(ATTENTION_DECODE, ATTENTION_DECODE.workload(Point((4, 2, 1, 1, capacity, 64, 0), "float32")))[3]
        assert (len(set(lengths.tolist())) == 1) == alike and (alike or {0, capacity} <= set(lengths.tolist()))


def test_the_size_of_a_pool_of_blocks_is_no_part_of_a_workload() -> None:
    q, table, lengths = heads(2, 4, 1, 8), torch.zeros(2, 3, dtype=torch.int32), torch.ones(2, dtype=torch.int32)
    keys = {
        ATTENTION_DECODE.workload_of((q, pool, pool, lengths, table, None)).key() for pool in (heads(6, 2, 4, 8), heads(60, 2, 4, 8))
    }
    assert len(keys) == 1


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


@pytest.mark.parametrize(
    ("lengths", "table", "told"),
    [
        (torch.ones(2, dtype=torch.int64), None, "lengths is torch.int64"),
        (torch.ones(3, dtype=torch.int32), None, r"lengths has shape \(3,\)"),
        (torch.ones(2, dtype=torch.int32), torch.ones(2, dtype=torch.int32), r"block_table has shape \(2,\)"),
        (torch.ones(2, dtype=torch.int32), torch.ones(2, 1), "block_table is torch.float32"),
    ],
)
def test_lengths_and_tables_of_another_kind_are_refused(lengths: torch.Tensor, table: torch.Tensor | None, told: str) -> None:
    with pytest.raises(InvalidInput, match=told):
        ops.attention_decode(torch.ones(2, 2, 1, 8), torch.ones(2, 2, 4, 8), torch.ones(2, 2, 4, 8), lengths, table)


def test_too_many_new_tokens_are_refused_with_the_op_that_takes_them() -> None:
    cache = torch.ones(1, 1, 32, 8)
    with pytest.raises(InvalidInput, match="the most is 16"):
        ops.attention_decode(torch.ones(1, 1, 17, 8), cache, cache, torch.ones(1, dtype=torch.int32))


def test_a_gradient_is_a_clear_error() -> None:
    q = torch.ones(1, 1, 2, 8, requires_grad=True)
    with pytest.raises(KernelyardError, match="attention"):
        ops.attention(q, q, q)[0].sum().backward()
