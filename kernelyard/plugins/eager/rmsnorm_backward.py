"""rmsnorm_backward by its formula in float32: 15 to 20 passes over the tensors, what plain torch costs without a fused kernel.

`plain` is the fused kernel that autograd calls on a GPU for torch.nn.functional.rms_norm, which knows no offset: there to be
timed against. Autograd has kept the reciprocal of the root for it; here it is made from one more read of x.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from kernelyard.registry.spec import Config, Workload

Backward = Callable[..., tuple[Tensor, Tensor]]


def eager(workload: Workload, config: Config) -> Backward:
    """The formula, for every workload."""
    return _formula


def plain(workload: Workload, config: Config) -> Backward:
    """torch's fused kernel, for a GPU."""
    return _fused


def _formula(dy: Tensor, x: Tensor, w: Tensor | None, eps: float, offset: float, casting: str) -> tuple[Tensor, Tensor]:
    dx, dw = gradients(dy, x, w, eps, offset)
    return dx.to(x.dtype).contiguous(), dw


def gradients(dy: Tensor, x: Tensor, w: Tensor | None, eps: float, offset: float) -> tuple[Tensor, Tensor]:
    """dx in float32, and dw as the contract has it."""
    x32, dy32 = x.to(torch.float32), dy.to(torch.float32)
    rstd = torch.rsqrt(x32.square().mean(-1, keepdim=True) + eps)
    normal = x32 * rstd
    scaled = dy32 if w is None else dy32 * (w.to(torch.float32) + offset)
    dx = rstd * (scaled - normal * (scaled * normal).mean(-1, keepdim=True))
    dw = x.new_empty(0) if w is None else (dy32 * normal).reshape(math.prod(x.shape[:-1]), x.shape[-1]).sum(0).to(w.dtype)
    return dx, dw


def _fused(dy: Tensor, x: Tensor, w: Tensor | None, eps: float, offset: float, casting: str) -> tuple[Tensor, Tensor]:
    return fused(dy, x, w, eps)


def fused(dy: Tensor, x: Tensor, w: Tensor | None, eps: float) -> tuple[Tensor, Tensor]:
    """dx and dw by torch's kernel, offset 0; the sum of squares in one read of x, nothing of its size written."""
    norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.float32)
    rstd = torch.rsqrt(norm.square() / x.shape[-1] + eps)
    dx, dw = torch.ops.aten._fused_rms_norm_backward(dy, x, [x.shape[-1]], rstd, w, [True, w is not None])
    return dx, x.new_empty(0) if w is None else dw
