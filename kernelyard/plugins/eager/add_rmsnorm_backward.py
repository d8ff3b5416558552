"""add_rmsnorm_backward by the formula of rmsnorm_backward, dr added before the one rounding.

`plain` is what autograd does on a GPU: torch's fused kernel and then a sum, which reads and writes dx again.
"""

from __future__ import annotations

from torch import Tensor

from kernelyard.plugins.eager.rmsnorm_backward import Backward, fused, gradients
from kernelyard.registry.spec import Config, Workload


def eager(workload: Workload, config: Config) -> Backward:
    """The formula, for every workload."""
    return _formula


def plain(workload: Workload, config: Config) -> Backward:
    """torch's fused kernel, for a GPU, and a sum."""
    return _fused


def _formula(dy: Tensor, dr: Tensor | None, r: Tensor, w: Tensor | None, eps: float, offset: float, casting: str) -> tuple[Tensor, Tensor]:
    dx, dw = gradients(dy, r, w, eps, offset)
    return (dx if dr is None else dx + dr).to(r.dtype).contiguous(), dw


def _fused(dy: Tensor, dr: Tensor | None, r: Tensor, w: Tensor | None, eps: float, offset: float, casting: str) -> tuple[Tensor, Tensor]:
    dx, dw = fused(dy, r, w, eps)
    return dx if dr is None else dx + dr, dw
