"""attention_decode by the formula of `attention` in float32, every sequence at its whole capacity with a mask; nothing is read on the host.

`plain` is torch's scaled_dot_product_attention with the same mask. It is there to be timed against.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from kernelyard.plugins.eager.attention import masked
from kernelyard.registry.spec import Config, Workload

Decode = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor | None, float | None], Tensor]


def eager(workload: Workload, config: Config) -> Decode:
    """The formula, for every workload."""
    return _formula


def plain(workload: Workload, config: Config) -> Decode:
    """The kernel that torch takes for a mask."""
    return _sdpa


def _formula(q: Tensor, k: Tensor, v: Tensor, lengths: Tensor, block_table: Tensor | None, scale: float | None) -> Tensor:
    k, v, seen = laid_out(q, k, v, lengths, block_table)
    if q.shape[2]:  # the last query sees the most; a weight of 0 times NaN is NaN
        v = v.masked_fill(~seen[:, 0, -1, :, None].unsqueeze(1), 0.0)
    out, _ = masked(q, k, v, seen, scale if scale is not None else max(q.shape[-1], 1) ** -0.5)
    return out.to(q.dtype)


def _sdpa(q: Tensor, k: Tensor, v: Tensor, lengths: Tensor, block_table: Tensor | None, scale: float | None) -> Tensor:
    k, v, seen = laid_out(q, k, v, lengths, block_table)
    return scaled_dot_product_attention(q, k, v, seen, scale=scale, enable_gqa=q.shape[1] != k.shape[1])


def laid_out(q: Tensor, k: Tensor, v: Tensor, lengths: Tensor, block_table: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """k and v as (batch, kv_heads, capacity, head_dim), and which tokens each new one sees, (batch, 1, q_len, capacity)."""
    known = None
    if block_table is not None:
        known = ((block_table >= 0) & (block_table < k.shape[0])).repeat_interleave(k.shape[2], 1)[:, None, None, :]
        k, v = (_gathered(cache, block_table) for cache in (k, v))
    tokens, new = torch.arange(k.shape[2], device=q.device), torch.arange(q.shape[2], device=q.device)
    last = lengths.clamp(0, k.shape[2])[:, None, None, None] - q.shape[2] + new[:, None]
    seen = tokens <= last
    return k, v, seen if known is None else seen & known


def _gathered(cache: Tensor, block_table: Tensor) -> Tensor:
    if cache.shape[0] == 0:
        batch, blocks = block_table.shape
        return cache.new_zeros(batch, cache.shape[1], blocks * cache.shape[2], cache.shape[3])
    inside = block_table.clamp(0, cache.shape[0] - 1)
    return cache[inside.long()].transpose(1, 2).flatten(2, 3)
