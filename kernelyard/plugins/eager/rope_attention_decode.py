"""rope_attention_decode by the formulas of rope and attention in float32, masked; nothing is read on the host.

`composed` calls the registered ops rope and attention_decode around a write by index. `plain` is what models have: rotation in qkv's
dtype, torch's scaled_dot_product_attention with a mask. A token without a place goes where it changes nothing: the slot that is there.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from kernelyard.plugins.eager.attention import masked
from kernelyard.registry.operator import operator
from kernelyard.registry.spec import Config, Workload

Decode = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, float | None], Tensor]


def eager(workload: Workload, config: Config) -> Decode:
    """The formula, for every workload."""
    return _formula


def composed(workload: Workload, config: Config) -> Decode:
    """Three registered ops' worth: rope of query and key in one, a write, attention over the cache."""
    rope, attention_decode = operator("rope"), operator("attention_decode")

    def decode(
        qkv: Tensor, k_cache: Tensor, v_cache: Tensor, lengths: Tensor, cos: Tensor, sin: Tensor, scale: float | None
    ) -> Tensor:
        q, k, v = split(qkv, k_cache)
        room, slot = places(lengths, k_cache)
        if k_cache.shape[2] == 0:
            return torch.full_like(q, torch.nan).flatten(1)
        turned = rope(torch.cat((q, k), 1), cos, sin, slot)
        put(k_cache, turned[:, q.shape[1] :], slot, room)
        put(v_cache, v, slot, room)
        out = attention_decode(turned[:, : q.shape[1]].unsqueeze(2), k_cache, v_cache, lengths + 1, None, scale)
        return _where(room, out.squeeze(2))

    return decode


def plain(workload: Workload, config: Config) -> Decode:
    """What is written in models."""
    return _sdpa


def _formula(
    qkv: Tensor, k_cache: Tensor, v_cache: Tensor, lengths: Tensor, cos: Tensor, sin: Tensor, scale: float | None
) -> Tensor:
    q, k, v = split(qkv, k_cache)
    room, slot = places(lengths, k_cache)
    if k_cache.shape[2] == 0:
        return torch.full_like(q, torch.nan).flatten(1)
    q, k = (turn(one.to(torch.float32), cos, sin, slot) for one in (q, k))
    put(k_cache, k.to(qkv.dtype), slot, room)
    put(v_cache, v, slot, room)
    seen = _seen(slot, k_cache)
    values = v_cache.masked_fill(~seen[:, 0, 0, :, None].unsqueeze(1), 0.0)  # a weight of 0 times NaN is NaN
    out, _ = masked(q.unsqueeze(2), k_cache, values, seen, scale if scale is not None else q.shape[-1] ** -0.5)
    return _where(room, out.squeeze(2).to(qkv.dtype))


def _sdpa(
    qkv: Tensor, k_cache: Tensor, v_cache: Tensor, lengths: Tensor, cos: Tensor, sin: Tensor, scale: float | None
) -> Tensor:
    q, k, v = split(qkv, k_cache)
    room, slot = places(lengths, k_cache)
    if k_cache.shape[2] == 0:
        return torch.full_like(q, torch.nan).flatten(1)
    q, k = (turn(one, cos.to(qkv.dtype), sin.to(qkv.dtype), slot) for one in (q, k))
    put(k_cache, k, slot, room)
    put(v_cache, v, slot, room)
    shared = q.shape[1] != k.shape[1]
    out = scaled_dot_product_attention(q.unsqueeze(2), k_cache, v_cache, _seen(slot, k_cache), scale=scale, enable_gqa=shared)
    return _where(room, out.squeeze(2))


def split(qkv: Tensor, cache: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """q, k and v as (batch, heads, head_dim)."""
    kv_heads, head_dim = cache.shape[1], cache.shape[3]
    heads = qkv.reshape(qkv.shape[0], qkv.shape[1] // head_dim, head_dim)
    q_heads = heads.shape[1] - 2 * kv_heads
    return heads[:, :q_heads], heads[:, q_heads : q_heads + kv_heads], heads[:, q_heads + kv_heads :]


def places(lengths: Tensor, cache: Tensor) -> tuple[Tensor, Tensor]:
    """Which sequences have room for a token, and the position of each, one that exists where there is none."""
    room = (lengths >= 0) & (lengths < cache.shape[2])
    return room, torch.where(room, lengths, 0).long()


def turn(x: Tensor, cos: Tensor, sin: Tensor, slot: Tensor) -> Tensor:
    """Heads (batch, heads, head_dim) rotated by the angles of their positions, in the precision of x."""
    c, s = (table[slot].unsqueeze(1) for table in (cos, sin))
    p, q = x.chunk(2, -1)
    return torch.cat((p * c - q * s, q * c + p * s), -1)


def put(cache: Tensor, token: Tensor, slot: Tensor, room: Tensor) -> None:
    """A token's heads into each sequence's slot; where there is no room what is there is put again."""
    rows = torch.arange(cache.shape[0], device=cache.device)
    cache[rows, :, slot] = torch.where(room[:, None, None], token, cache[rows, :, slot])


def _seen(slot: Tensor, cache: Tensor) -> Tensor:
    return (torch.arange(cache.shape[2], device=cache.device) <= slot[:, None])[:, None, None, :]


def _where(room: Tensor, out: Tensor) -> Tensor:
    return torch.where(room[:, None, None], out, torch.nan).flatten(1)
