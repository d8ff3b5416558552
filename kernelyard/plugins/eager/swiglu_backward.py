"""swiglu_backward by its formula in float32."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from kernelyard.plugins.eager.swiglu import halves
from kernelyard.registry.spec import Config, Workload


def eager(workload: Workload, config: Config) -> Callable[[Tensor, Tensor, Tensor | None], tuple[Tensor, Tensor]]:
    """The formula, for every workload."""
    return _formula


def _formula(dy: Tensor, a: Tensor, b: Tensor | None) -> tuple[Tensor, Tensor]:
    gate, up = (half.to(torch.float32) for half in halves(a, b))
    dy32, sigmoid = dy.to(torch.float32), torch.sigmoid(gate)
    da = (dy32 * up * (sigmoid * (1 + gate * (1 - sigmoid)))).to(a.dtype)
    db = (dy32 * (gate * sigmoid)).to(a.dtype)
    return (torch.cat((da, db), -1), a.new_empty(0)) if b is None else (da.contiguous(), db.contiguous())
