"""Kernels of attention that are wrong in a mask, a shared head, a length or a table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from kernelyard.registry.backend import Executable
from tests.wrong_kernels.catalogue import Entry, attention, attention_decode, calling


def aligned_to_the_top_left(q, k, v, scale, causal, return_lse):
    longer = max(q.shape[2] - k.shape[2], 0)  # keys behind the last make the corner the other one
    k, v = (torch.nn.functional.pad(t, (0, 0, 0, longer))[:, :, : q.shape[2]] for t in (k, v)) if causal else (k, v)
    return attention(q, k, v, scale, causal, return_lse)


def a_row_of_nothing_is_nan(q, k, v, scale, causal, return_lse):
    out, lse = attention(q, k, v, scale, causal, True)
    return out.masked_fill(lse.isneginf()[..., None], torch.nan), lse if return_lse else lse.new_empty(0)


def logarithm_to_base_two(q, k, v, scale, causal, return_lse):
    out, lse = attention(q, k, v, scale, causal, return_lse)
    return out, lse * 1.4426950408889634


def heads_shared_in_turn(q, k, v, *rest):
    turned = torch.arange(q.shape[1], device=q.device) % k.shape[1]
    return attention(q, k[:, turned], v[:, turned], *rest)


def every_sequence_as_long_as_can_be(q, k, v, lengths, table, scale):
    return attention_decode(q, k.nan_to_num(), v.nan_to_num(), torch.full_like(lengths, 1 << 20), table, scale)


def weights_of_nothing_times_nan(q, k, v, lengths, table, scale):
    out = attention_decode(q, k, v, lengths, table, scale)
    return out + (0 * v[:, :1].sum((2,), keepdim=True).to(out.dtype) if table is None else 0)


def blocks_that_are_none_taken_for_the_last(q, k, v, lengths, table, scale):
    return attention_decode(q, k.nan_to_num(), v.nan_to_num(), lengths, None if table is None else table.clamp(0, k.shape[0] - 1), scale)


def lengths_of_the_first_call() -> Executable:
    kept: dict[int, Tensor] = {}

    def call(q: Tensor, k: Tensor, v: Tensor, lengths: Tensor, table: Any, scale: Any) -> Tensor:
        first = kept.setdefault(lengths.data_ptr(), lengths.clone())
        return attention_decode(q, k.nan_to_num(), v.nan_to_num(), first, table, scale)

    return Executable(call)


def _wrong(op: str, function: Callable[..., Any], says: str) -> Entry:
    return Entry(function.__name__, calling(function), says, op=op)


ATTENTIONS = (
    _wrong("attention", aligned_to_the_top_left, "differ"),
    _wrong("attention", a_row_of_nothing_is_nan, "nan"),
    _wrong("attention", logarithm_to_base_two, "output 1"),
    _wrong("attention", heads_shared_in_turn, "differ"),
    _wrong("attention_decode", every_sequence_as_long_as_can_be, "differ"),
    _wrong("attention_decode", weights_of_nothing_times_nan, "nan"),
    _wrong("attention_decode", blocks_that_are_none_taken_for_the_last, "differ"),
    Entry("lengths_of_the_first_call", lengths_of_the_first_call, "with other data at the same addresses", op="attention_decode"),
)
