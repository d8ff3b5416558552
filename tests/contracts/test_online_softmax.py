"""The online softmax: states merge in any order and grouping, and blocks give what the whole gives."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some

from kernelyard.contracts import ATTENTION
from kernelyard.contracts.online_softmax import State, blockwise, finish, merge, nothing_seen, of_block

SEEDS, LENGTHS = some.integers(0, 2**31), some.integers(0, 9)


def state(seed: int, keys: int, masked: float = 0.3) -> State:
    """Of three rows over so many keys, of which about a third is not seen, at scores of up to some hundred."""
    random = torch.Generator().manual_seed(seed)
    scores = torch.randn(3, keys, generator=random, dtype=torch.float64) * 50
    scores[torch.rand(3, keys, generator=random) < masked] = -math.inf
    return of_block(scores, torch.randn(3, keys, 4, generator=random, dtype=torch.float64)[0])


def agree(one: State, other: State) -> None:
    torch.testing.assert_close(finish(one), finish(other), rtol=1e-12, atol=1e-12)


@settings(deadline=None, derandomize=True)
@given(SEEDS, LENGTHS, LENGTHS)
def test_two_states_merge_alike_in_either_order(seed: int, m: int, n: int) -> None:
    a, b = state(seed, m), state(seed + 1, n)
    agree(merge(a, b), merge(b, a))


@settings(deadline=None, derandomize=True)
@given(SEEDS, LENGTHS, LENGTHS, LENGTHS)
def test_three_states_merge_alike_in_either_grouping(seed: int, m: int, n: int, o: int) -> None:
    a, b, c = state(seed, m), state(seed + 1, n), state(seed + 2, o)
    agree(merge(merge(a, b), c), merge(a, merge(b, c)))


@settings(deadline=None, derandomize=True)
@given(SEEDS, LENGTHS)
def test_a_state_of_nothing_leaves_no_trace(seed: int, n: int) -> None:
    a = state(seed, n)
    for merged in (merge(a, nothing_seen((3,), 4, a.acc)), merge(nothing_seen((3,), 4, a.acc), a)):
        assert all(torch.equal(x, y) for x, y in zip(merged, a, strict=True))


@settings(deadline=None, derandomize=True)
@given(SEEDS, some.integers(1, 9), some.integers(0, 9))
def test_blocks_merge_to_the_state_of_all_keys(seed: int, n: int, cut: int) -> None:
    random = torch.Generator().manual_seed(seed)
    scores, values = torch.randn(3, n, generator=random).double() * 50, torch.randn(n, 4, generator=random).double()
    parts = [of_block(scores[:, part], values[part]) for part in (slice(0, cut), slice(cut, n))]
    agree(merge(*parts), of_block(scores, values))
    out, lse = finish(of_block(scores, values))
    torch.testing.assert_close(out, torch.softmax(scores, -1) @ values)
    torch.testing.assert_close(lse, torch.logsumexp(scores, -1))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("q_len", "kv_len"), [(7, 7), (5, 12), (12, 5), (1, 9), (3, 0), (0, 3), (16, 16)])
@pytest.mark.parametrize("blocks", [(1, 1), (4, 3), (16, 16)])
def test_blockwise_attention_is_attention(causal: bool, q_len: int, kv_len: int, blocks: tuple[int, int]) -> None:
    q, k, v = (torch.randn(2, 3, n, 4, dtype=torch.float64) for n in (q_len, kv_len, kv_len))
    torch.testing.assert_close(blockwise(q, k, v, 0.5, causal, *blocks), ATTENTION.reference(q, k, v, 0.5, causal, True))
