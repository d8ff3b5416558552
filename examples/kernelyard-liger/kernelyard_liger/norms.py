"""rmsnorm, add_rmsnorm and their gradients by Liger's functions.

Casting. Liger's 'gemma' is kernelyard's 'fp32': everything in float32, rounded once. Its 'llama' is the same as ours, but that an
offset is added to the weight without rounding the sum, which the tolerance of 'llama' covers. Gradients go by 'gemma' for both:
Liger's 'llama' gradient rounds x * rstd and its product with dy to x's dtype, the contract sums them in float32.

In place. Liger can write dx over dy, and does so by default; here dy belongs to the caller. Out of place, Liger's rmsnorm
gradient first fills dx with zeros: one more write.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from liger_kernel.ops.fused_add_rms_norm import fused_add_rms_norm_backward, fused_add_rms_norm_forward
from liger_kernel.ops.rms_norm import rms_norm_backward, rms_norm_forward
from liger_kernel.ops.utils import calculate_settings
from torch import Tensor

from kernelyard.registry.spec import Config, Workload

CASTING = {"fp32": "gemma", "llama": "llama"}
GEMMA = 1
"""Liger's number for it: its gradients take no names."""
Two = Callable[..., tuple[Tensor, Tensor]]


def rmsnorm(workload: Workload, config: Config) -> Callable[..., Tensor]:
    """Liger picks its kernel in the call, by rows and cols."""
    mode = CASTING[str(workload.static("casting"))]

    def call(x: Tensor, w: Tensor | None, eps: float, offset: float, casting: str) -> Tensor:
        # floats even where the caller gave an int: Triton makes an int of 1 a constant
        y: Tensor = rms_norm_forward(x, w, float(eps), float(offset), mode, None)[0]
        return y

    return call


def rmsnorm_backward(workload: Workload, config: Config) -> Two:
    """dx and dw; Liger's gradient wants x as (rows, cols) and the block of its forward."""
    cols = workload.dim("cols")
    block, warps = calculate_settings(cols)

    def call(dy: Tensor, x: Tensor, w: Tensor | None, eps: float, offset: float, casting: str) -> tuple[Tensor, Tensor]:
        flat = x.view(-1, cols)
        dx, dw = rms_norm_backward(dy, flat, w, rstd(flat, eps), float(offset), GEMMA, block, warps, False, None)
        return dx, x.new_empty(0) if dw is None else dw

    return call


def add_rmsnorm(workload: Workload, config: Config) -> Two:
    """(y, r), both newly allocated by Liger."""
    mode = CASTING[str(workload.static("casting"))]

    def call(x: Tensor, residual: Tensor, w: Tensor, eps: float, offset: float, casting: str) -> tuple[Tensor, Tensor]:
        y, r, *_ = fused_add_rms_norm_forward(x, residual, w, float(eps), float(offset), mode)
        return y, r

    return call


def add_rmsnorm_backward(workload: Workload, config: Config) -> Two:
    """(dx, dw)."""
    cols = workload.dim("cols")
    block, warps = calculate_settings(cols)
    stages = 2  # what its forward hands over

    def call(dy: Tensor, dr: Tensor, r: Tensor, w: Tensor, eps: float, offset: float, casting: str) -> tuple[Tensor, Tensor]:
        scale = rstd(r.view(-1, cols), eps)
        dx, _, dw = fused_add_rms_norm_backward(dy, dr, r, w, scale, float(offset), GEMMA, block, warps, stages, False)
        return dx, dw

    return call


def rstd(x: Tensor, eps: float) -> Tensor:
    """1 / sqrt(mean(x^2) + eps) of each row in float32: one read of x, then three passes over a number a row."""
    norms: Tensor = torch.linalg.vector_norm(x, dim=-1, dtype=torch.float32)
    return norms.square_().mul_(1.0 / x.shape[-1]).add_(eps).rsqrt_()
