"""attention by its formula in float32, and torch's own scaled_dot_product_attention.

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

Attention = Callable[[Tensor, Tensor, Tensor, float | None, bool, bool], tuple[Tensor, Tensor]]


def eager(workload: Workload, config: Config) -> Attention:
    """The formula, for every workload; its memory grows with q_len * kv_len."""
    return _formula


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


def _formula(q: Tensor, k: Tensor, v: Tensor, scale: float | None, causal: bool, return_lse: bool) -> tuple[Tensor, Tensor]:
    q_len, kv_len = q.shape[2], k.shape[2]
    query = torch.arange(q_len, device=q.device)[:, None]
    seen = torch.arange(kv_len, device=q.device)[None, :] <= query + (kv_len - q_len if causal else kv_len)
    out, lse = masked(q, k, v, seen, q.shape[-1] ** -0.5 if scale is None and q.shape[-1] else scale or 0.0)
    return out.to(q.dtype), lse if return_lse else lse.new_empty(0)


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


def _by(
    backend: SDPBackend, q: Tensor, k: Tensor, v: Tensor, scale: float | None, causal: bool, return_lse: bool
) -> tuple[Tensor, Tensor]:
    with sdpa_kernel(backend):
        return _sdpa(q, k, v, scale, causal, return_lse)


def _sdpa(q: Tensor, k: Tensor, v: Tensor, scale: float | None, causal: bool, return_lse: bool) -> tuple[Tensor, Tensor]:
    q_len, kv_len = q.shape[2], k.shape[2]
    mask = causal_lower_right(q_len, kv_len) if causal and q_len != kv_len else None
    shared = q.shape[1] != k.shape[1]
    out = scaled_dot_product_attention(q, k, v, mask, is_causal=causal and mask is None, scale=scale, enable_gqa=shared)
    return out, q.new_empty(0, dtype=torch.float32)
