"""attention and attention_decode by the function that FA4's autograd one calls.

FA4 has heads inside of tokens, (batch, length, heads, head_dim); the contract has tokens inside of heads. Views are all that lies
between: support keeps what FA4 would copy away.
"""

from __future__ import annotations

import math

import torch
from flash_attn.cute.interface import _flash_attn_fwd
from torch import Tensor

from kernelyard.registry.spec import Config, Workload
from kernelyard_fa4.build import Into


def attention(workload: Workload, config: Config) -> Into:
    """(out, lse), lse where it is asked for."""

    def into(outputs: tuple[Tensor, Tensor], q: Tensor, k: Tensor, v: Tensor, scale: float | None, causal: bool, return_lse: bool) -> None:
        out, lse = outputs
        _forward(out, q, k, v, scale, causal, lse=lse if return_lse else None)
        if return_lse:
            _nan_where_the_row_has_one(lse, out)

    return into


def attention_decode(workload: Workload, config: Config) -> Into:
    """From a contiguous cache; one new token sees all that counts, so that nothing is causal about it."""
    causal = workload.dim("q_len") > 1

    def into(outputs: tuple[Tensor], q: Tensor, k: Tensor, v: Tensor, lengths: Tensor, table: None, scale: float | None) -> None:
        _forward(outputs[0], q, k, v, scale, causal, seqused_k=lengths)

    return into


def _forward(out: Tensor, q: Tensor, k: Tensor, v: Tensor, scale: float | None, causal: bool, **given: Tensor | None) -> None:
    if scale is not None and scale <= 0.0:
        q, scale = _of_positive_scale(q, scale)
    q, k, v, out = (tensor.transpose(1, 2) for tensor in (q, k, v, out))
    _flash_attn_fwd(q, k, v, softmax_scale=scale, causal=causal, out=out, **given)


def _of_positive_scale(q: Tensor, scale: float) -> tuple[Tensor, float]:
    """The same scores: FA4 takes the largest before it scales, and scales what it masked with -inf. One more pass over q."""
    return (-q, -scale) if scale < 0.0 else (q * 0.0, 1.0)


def _nan_where_the_row_has_one(lse: Tensor, out: Tensor) -> None:
    """FA4 says -inf where a score is NaN, as it does where none counts; the result tells which. A few passes over a number a row."""
    lse.masked_fill_((lse == -math.inf).logical_and_(torch.isnan(out[..., 0])), math.nan)
