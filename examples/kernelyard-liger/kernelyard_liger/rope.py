"""rope by Liger's rotation of queries and keys.

Liger rotates in place, both queries and keys, with a row of angles for each token in order. So x is copied, the angles are looked
up by position first, and the keys are one head of memory that nobody reads: what Liger does in a model costs less.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from liger_kernel.ops.rope import rope_backward, rope_forward
from torch import Tensor

from kernelyard.registry.spec import Config, Workload


def rope(workload: Workload, config: Config) -> Callable[..., Tensor]:
    """Rotated by the angle, or by its negative: Liger's gradient."""
    tokens, heads, dim = (workload.dim(name) for name in ("tokens", "heads", "dim"))
    rotate = rope_backward if workload.static("inverse") else rope_forward

    def call(x: Tensor, cos: Tensor, sin: Tensor, positions: Tensor, style: str, inverse: bool) -> Tensor:
        at = positions.reshape(-1)
        y = x.clone(memory_format=torch.contiguous_format)
        queries, keys = y.view(1, tokens, heads, dim), x.new_empty((1, tokens, 1, dim))
        # Liger wants (batch, heads, tokens, dim) as views of (batch, tokens, heads, dim): it transposes back and finds them contiguous
        rotate(queries.transpose(1, 2), keys.transpose(1, 2), cos.index_select(0, at), sin.index_select(0, at), rotary_dim=dim)
        return y

    return call
