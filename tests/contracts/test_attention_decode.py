"""attention_decode: lengths on the device, caches of both kinds, what lies past a length, what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from kernelyard import ops
from kernelyard.contracts import ATTENTION, ATTENTION_DECODE
from kernelyard.errors import InvalidInput
from kernelyard.registry.matrix import Point
from tests.contracts.cases import inputs, plain_torch, wide, within


@pytest.fixture(autouse=True)
def _plain_torch() -> Iterator[None]:
    with plain_torch():
        yield


def heads(*sizes: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(*sizes, dtype=dtype)


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
    keys = {ATTENTION_DECODE.workload_of((q, pool, pool, lengths, table, None)).key() for pool in (heads(6, 2, 4, 8), heads(60, 2, 4, 8))}
    assert len(keys) == 1


@pytest.mark.parametrize("block", [0, 16])
def test_what_lies_past_a_length_has_no_influence_be_it_nan(block: int) -> None:
    workload = ATTENTION_DECODE.workload(Point((4, 4, 2, 2, 80, 8, block), "float32"))
    q, k, v, lengths, table, scale = args = inputs(ATTENTION_DECODE, workload)
    assert k.isnan().any() and v.isnan().any() and (table is None or ((table == -1).any() and (table == k.shape[0]).any()))
    out = ops.attention_decode(*args)
    assert out.isfinite().all() and within(ATTENTION_DECODE, workload, out, args)
    finite = ops.attention_decode(q, k.nan_to_num(7.0), v.nan_to_num(7.0), lengths, table, scale)
    torch.testing.assert_close(out, finite, rtol=0, atol=0)


def test_a_whole_graph_reads_other_lengths_and_tables_without_a_new_one() -> None:
    graphs = 0

    def count(module: torch.fx.GraphModule, _: Any) -> Any:
        nonlocal graphs
        graphs += 1
        return module

    compiled = torch.compile(lambda *args: ops.attention_decode(*args), fullgraph=True, backend=count)
    q, pool = heads(2, 4, 1, 8, dtype=torch.float32), heads(6, 2, 4, 8, dtype=torch.float32)
    for seed in range(3):
        lengths = torch.tensor([seed * 4, 11 - seed], dtype=torch.int32)
        table = torch.randperm(6, generator=torch.Generator().manual_seed(seed)).view(2, 3).int()
        expected = ops.attention_decode(q, pool, pool, lengths, table)
        torch.testing.assert_close(compiled(q, pool, pool, lengths, table), expected, rtol=0, atol=0)
    assert graphs == 1


@pytest.mark.parametrize(
    "wrong",
    [
        lambda q, k, v, n, t, scale: ATTENTION_DECODE.reference(q, k, v, n.clamp(max=int(n[1])), t, scale),
        lambda q, k, v, n, t, scale: ATTENTION_DECODE.reference(q, k, v, n - 1, t, scale),
        lambda q, k, v, n, t, scale: ATTENTION_DECODE.reference(q, k, v, n, t.sort().values, scale),
        lambda q, k, v, n, t, scale: ATTENTION_DECODE.reference(q, k, v, n, t.clamp(max=k.shape[0] - 1), scale),
        lambda q, k, v, n, t, scale: ATTENTION_DECODE.reference(q.flip(2), k, v, n, t, scale).flip(2),
    ],
    ids=["another's length", "the last token left out", "blocks in order", "a block that is none taken for the last", "queries reversed"],
)
def test_a_decode_that_is_wrong_is_outside_the_tolerance(wrong: Any) -> None:
    workload = ATTENTION_DECODE.workload(Point((4, 4, 2, 2, 80, 64, 16), "bfloat16"))
    args = inputs(ATTENTION_DECODE, workload)
    assert within(ATTENTION_DECODE, workload, ATTENTION_DECODE.reference(*wide(args)).bfloat16(), args)
    assert not within(ATTENTION_DECODE, workload, wrong(*wide(args)).bfloat16(), args)


@pytest.mark.parametrize(("block", "unusual"), [(0, ""), (16, " with block_table")])
def test_the_usual_cache_is_contiguous(block: int, unusual: str) -> None:
    assert ATTENTION_DECODE.parse_shape("2x4x2x1x80x64") == (2, 4, 2, 1, 80, 64, 0)
    label = ATTENTION_DECODE.workload(Point((2, 4, 2, 1, 80, 64, block), "bfloat16")).label()
    assert label == f"2x4x2x1x80x64x{block} bf16{unusual}"


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
