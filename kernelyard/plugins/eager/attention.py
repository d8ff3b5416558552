"""attention by torch's fused kernel where it keeps the contract, else by its formula in float32; and torch's own choice to compare with.

torch's fused kernel for a CPU takes memory that grows with the lengths, and serves where every query sees a key and no logarithm is asked
for. A query of NaN it answers with zeros, so the sums of q and k are looked at first, which costs little beside the products. On a
GPU looking would wait for the device. The formula takes some queries at a time, so that its scores fit in memory.

`plain` is what models call, whichever of torch's kernels it takes; `flash`, `efficient`, `cudnn` and `math` are those by name. They leave
a query that sees no key as NaN or zeros, as it happens, and so are there to be timed against. torch's `is_causal` is aligned to the top
left: where lengths differ, the mask of `causal_lower_right` takes its place.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import causal_lower_right
from torch.nn.functional import scaled_dot_product_attention

from kernelyard.registry.spec import Config, Workload

MOST_SCORES = 1 << 28
"""Scores that the formula holds at once, in float32 and twice: 2 GiB."""
Attention = Callable[[Tensor, Tensor, Tensor, float | None, bool, bool], tuple[Tensor, Tensor]]


def eager(workload: Workload, config: Config) -> Attention:
    """A fused kernel where one keeps the contract, else the formula."""
    return _fused if _keeps(workload) else _formula


def traceable(workload: Workload, config: Config) -> Attention:
    """The formula at once, which a compiler fuses."""
    return _at_once


def plain(workload: Workload, config: Config) -> Attention:
    """The kernel that torch takes."""
    return _sdpa


def flash(workload: Workload, config: Config) -> Attention:
    """FlashAttention-2."""
    return partial(_by, SDPBackend.FLASH_ATTENTION)


def efficient(workload: Workload, config: Config) -> Attention:
    """The memory-efficient kernel of xFormers."""
    return partial(_by, SDPBackend.EFFICIENT_ATTENTION)


def cudnn(workload: Workload, config: Config) -> Attention:
    """cuDNN's."""
    return partial(_by, SDPBackend.CUDNN_ATTENTION)


def math_kernel(workload: Workload, config: Config) -> Attention:
    """The formula, as torch writes it."""
    return partial(_by, SDPBackend.MATH)


def _keeps(workload: Workload) -> bool:
    """Whether torch's fused kernel gives what the contract asks for, NaN aside."""
    q_len, kv_len, causal = workload.dim("q_len"), workload.dim("kv_len"), workload.static("causal")
    sees = kv_len > 0 and (not causal or q_len in (1, kv_len))  # a causal mask of other lengths is a tensor of q_len * kv_len in torch
    return sees and workload.device == "cpu" and not workload.static("return_lse") and workload["q"].numel > 0


def _fused(q: Tensor, k: Tensor, v: Tensor, scale: float | None, causal: bool, return_lse: bool) -> tuple[Tensor, Tensor]:
    total = q.sum(dtype=torch.float32) + k.sum(dtype=torch.float32)
    if not math.isfinite(total.item()):
        return _formula(q, k, v, scale, causal, return_lse)
    out = scaled_dot_product_attention(q, k, v, is_causal=causal and q.shape[2] > 1, scale=scale, enable_gqa=q.shape[1] != k.shape[1])
    return out.contiguous(), q.new_empty(0, dtype=torch.float32)


def _formula(q: Tensor, k: Tensor, v: Tensor, scale: float | None, causal: bool, return_lse: bool) -> tuple[Tensor, Tensor]:
    q_len, at_once = q.shape[2], max(MOST_SCORES // max(q.shape[0] * q.shape[1] * k.shape[2], 1), 1)
    if q_len <= at_once:
        return _at_once(q, k, v, scale, causal, return_lse)
    parts = [_some(q, k, v, scale, causal, slice(start, min(start + at_once, q_len))) for start in range(0, q_len, at_once)]
    out, lse = (torch.cat(some, 2) for some in zip(*parts, strict=True))
    return out, lse if return_lse else lse.new_empty(0)


def _at_once(q: Tensor, k: Tensor, v: Tensor, scale: float | None, causal: bool, return_lse: bool) -> tuple[Tensor, Tensor]:
    out, lse = _some(q, k, v, scale, causal, slice(0, q.shape[2]))
    return out, lse if return_lse else lse.new_empty(0)


def _some(q: Tensor, k: Tensor, v: Tensor, scale: float | None, causal: bool, some: slice) -> tuple[Tensor, Tensor]:
    """Of some queries, which keep their places in the mask."""
    q_len, kv_len = q.shape[2], k.shape[2]
    query = torch.arange(some.start, some.stop, device=q.device)[:, None]
    seen = torch.arange(kv_len, device=q.device)[None, :] <= query + (kv_len - q_len if causal else kv_len)
    out, lse = masked(q[:, :, some], k, v, seen, q.shape[-1] ** -0.5 if scale is None and q.shape[-1] else scale or 0.0)
    return out.to(q.dtype), lse


def masked(q: Tensor, k: Tensor, v: Tensor, seen: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Attention over the keys seen, and the logarithm of each row's sum, both in float32; query heads share those of k and v."""
    if k.shape[2] == 0:
        return torch.zeros_like(q, dtype=torch.float32), q.new_full(q.shape[:-1], -math.inf, dtype=torch.float32)
    shared = (q.shape[0], k.shape[1], q.shape[1] // k.shape[1])
    grouped = q.float().reshape(*shared, *q.shape[2:])
    scores = ((grouped @ k.float().mT.unsqueeze(2)).flatten(1, 2) * scale).masked_fill(~seen, -math.inf)
    largest = scores.amax(-1, keepdim=True)
    weights = (scores - largest.masked_fill(largest == -math.inf, 0.0)).exp()
    total = weights.sum(-1, keepdim=True)
    out = (weights.reshape(*shared, *weights.shape[2:]) @ v.float().unsqueeze(2)).flatten(1, 2) / total.masked_fill(total == 0.0, 1.0)
    return out.contiguous(), (largest + total.log()).squeeze(-1)


def _by(backend: SDPBackend, q: Tensor, k: Tensor, v: Tensor, scale: float | None, causal: bool, return_lse: bool) -> tuple[Tensor, Tensor]:
    with sdpa_kernel(backend):
        return _sdpa(q, k, v, scale, causal, return_lse)


def _sdpa(q: Tensor, k: Tensor, v: Tensor, scale: float | None, causal: bool, return_lse: bool) -> tuple[Tensor, Tensor]:
    q_len, kv_len = q.shape[2], k.shape[2]
    mask = causal_lower_right(q_len, kv_len) if causal and q_len != kv_len else None
    shared = q.shape[1] != k.shape[1]
    out = scaled_dot_product_attention(q, k, v, mask, is_causal=causal and mask is None, scale=scale, enable_gqa=shared)
    return out, q.new_empty(0, dtype=torch.float32)
