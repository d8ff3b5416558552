"""swiglu by torch.nn.functional.silu in float32, rounded once.

`plain` is what models have, silu and a product in the tensors' own dtype: one rounding more than the contract grants, and
half the memory traffic. It is there to be timed against.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import silu

from kernelyard.registry.spec import Config, Workload

Swiglu = Callable[[Tensor, Tensor | None], Tensor]


def eager(workload: Workload, config: Config) -> Swiglu:
    """The formula, for every workload."""
    return _swiglu


def plain(workload: Workload, config: Config) -> Swiglu:
    """What is written in models."""
    return _rounded_twice


def _swiglu(a: Tensor, b: Tensor | None) -> Tensor:
    gate, up = halves(a, b)
    return (silu(gate.to(torch.float32)) * up).to(a.dtype).contiguous()


def _rounded_twice(a: Tensor, b: Tensor | None) -> Tensor:
    gate, up = halves(a, b)
    return silu(gate) * up


def halves(a: Tensor, b: Tensor | None) -> tuple[Tensor, Tensor]:
    """The gate and what it is multiplied with, wherever they are."""
    return (a[..., : a.shape[-1] // 2], a[..., a.shape[-1] // 2 :]) if b is None else (a, b)
