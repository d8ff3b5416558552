"""The online softmax that attention kernels are made of, in plain torch, to be read and to be tested against.

A row of scores s and values v is folded into a state of three: m, the largest score so far; l, the sum of exp(s - m); acc, the sum of
exp(s - m) * v. The result is acc / l, the logarithm of the sum m + log l. Two states of disjoint keys merge into that of both, in any
order and grouping but for roundings: so keys may be taken in blocks, by one program after the other or by several at once.

Sources: Milakov and Gimelshein, "Online normalizer calculation for softmax" (2018); Rabe and Staats, "Self-attention does not need O(n^2)
memory" (2021); Dao et al., "FlashAttention" (2022).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from kernelyard.registry.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor


class State(NamedTuple):
    """Of rows (...): m and l are (..., 1), acc is (..., head_dim). Of no keys: -inf, 0 and zeros."""

    m: Tensor
    l: Tensor  # noqa: E741  # as the papers call it
    acc: Tensor


def nothing_seen(rows: tuple[int, ...], head_dim: int, like: Tensor) -> State:
    """The state of no keys, which merges into any other without a trace."""
    return State(like.new_full((*rows, 1), -math.inf), like.new_zeros((*rows, 1)), like.new_zeros((*rows, head_dim)))


def of_block(scores: Tensor, values: Tensor) -> State:
    """The state of one block: scores (..., keys), -inf where a key is not seen; values (..., keys, head_dim)."""
    if scores.shape[-1] == 0:
        return nothing_seen(tuple(scores.shape[:-1]), values.shape[-1], scores)
    m = scores.amax(-1, keepdim=True)
    weights = torch.exp(scores - _finite(m))
    return State(m, weights.sum(-1, keepdim=True), weights @ values)


def merge(one: State, other: State) -> State:
    """The state of the keys of both: each is scaled by exp of its own largest score minus that of both."""
    m = torch.maximum(one.m, other.m)
    a, b = torch.exp(one.m - _finite(m)), torch.exp(other.m - _finite(m))
    return State(m, one.l * a + other.l * b, one.acc * a + other.acc * b)


def finish(state: State) -> tuple[Tensor, Tensor]:
    """The result (..., head_dim) and its logarithm (...); 0 and -inf where nothing was seen."""
    return state.acc / state.l.masked_fill(state.l == 0.0, 1.0), (state.m + state.l.log()).squeeze(-1)


def blockwise(q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool, block_q: int, block_kv: int) -> tuple[Tensor, Tensor]:
    """Attention as a kernel does it: blocks of queries, each over blocks of the keys it sees; memory grows with q_len + kv_len.

    q is (..., q_len, head_dim), k and v (..., kv_len, head_dim). Blocks behind the last key that a block of queries sees are never
    touched, and only those on the diagonal are masked.
    """
    q_len, kv_len = q.shape[-2], k.shape[-2]
    ahead = kv_len - q_len if causal else kv_len
    out, lse = torch.zeros_like(q), q.new_full(q.shape[:-1], -math.inf)
    for start in range(0, q_len, block_q):
        rows = slice(start, min(start + block_q, q_len))
        state = nothing_seen(tuple(q[..., rows, :].shape[:-1]), v.shape[-1], q)
        for first in range(0, min(max(rows.stop + ahead, 0), kv_len), block_kv):
            keys = slice(first, min(first + block_kv, kv_len))
            scores = (q[..., rows, :] @ k[..., keys, :].mT) * scale
            if keys.stop - 1 > rows.start + ahead:
                seen = _upto(keys, q)[None, :] <= _upto(rows, q)[:, None] + ahead
                scores = scores.masked_fill(~seen, -math.inf)
            state = merge(state, of_block(scores, v[..., keys, :]))
        out[..., rows, :], lse[..., rows] = finish(state)
    return out, lse


def _upto(places: slice, like: Tensor) -> Tensor:
    return torch.arange(places.start, places.stop, device=like.device)


def _finite(m: Tensor) -> Tensor:
    """-inf as 0: minus infinity from itself is no number, and a row that has seen nothing has no weights to scale."""
    return m.masked_fill(m == -math.inf, 0.0)
