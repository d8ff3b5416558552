"""swiglu by torch.nn.functional.silu in float32: one rounding, where silu in a half dtype and then a product make two."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import silu

from kernelyard.registry.spec import Config, Workload


def eager(workload: Workload, config: Config) -> Callable[[Tensor, Tensor | None], Tensor]:
    """The formula, for every workload."""
    return _swiglu


def _swiglu(a: Tensor, b: Tensor | None) -> Tensor:
    gate, up = halves(a, b)
    return (silu(gate.to(torch.float32)) * up).to(a.dtype).contiguous()


def halves(a: Tensor, b: Tensor | None) -> tuple[Tensor, Tensor]:
    """The gate and what it is multiplied with, wherever they are."""
    return (a[..., : a.shape[-1] // 2], a[..., a.shape[-1] // 2 :]) if b is None else (a, b)
