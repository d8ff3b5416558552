"""rmsnorm, add_rmsnorm and their gradients by the functions that quack's public ones allocate for and then call.

add_rmsnorm. quack normalises the sum as it is in float32, the contract what was rounded to x's dtype; the tolerance grants that.
Gradients. quack's forward saves rstd of each row; the contract of the gradient has x alone, so torch makes it again.
"""

from __future__ import annotations

import torch
from quack.rmsnorm import _rmsnorm_bwd, _rmsnorm_fwd
from quack.rmsnorm_config import get_sm_count
from torch import Tensor

from kernelyard.registry.spec import Config, Workload
from kernelyard_quack.build import Into

One = tuple[Tensor]
Two = tuple[Tensor, Tensor]


def rmsnorm(workload: Workload, config: Config) -> Into:
    """The offset is compiled in."""
    cols = workload.dim("cols")

    def into(outputs: One, x: Tensor, w: Tensor | None, eps: float, offset: float, casting: str) -> None:
        _rmsnorm_fwd(x.view(-1, cols), w, outputs[0].view(-1, cols), eps=eps, weight_offset=float(offset))

    return into


def add_rmsnorm(workload: Workload, config: Config) -> Into:
    """(y, r); each program reads what it needs before it writes, so they may be x and residual."""
    cols = workload.dim("cols")

    def into(outputs: Two, x: Tensor, residual: Tensor, w: Tensor | None, eps: float, offset: float, casting: str) -> None:
        y, r, x, residual = (tensor.view(-1, cols) for tensor in (*outputs, x, residual))
        _rmsnorm_fwd(x, w, y, None, None, None, residual, r, eps, False, float(offset))

    return into


def rmsnorm_backward(workload: Workload, config: Config) -> Into:
    """(dx, dw)."""
    cols = workload.dim("cols")

    def into(outputs: Two, dy: Tensor, x: Tensor, w: Tensor | None, eps: float, offset: float, casting: str) -> None:
        _backward(outputs, dy.view(-1, cols), None, x.view(-1, cols), w, eps, float(offset))

    return into


def add_rmsnorm_backward(workload: Workload, config: Config) -> Into:
    """(dx, dw); dr is added before dx is rounded."""
    cols = workload.dim("cols")

    def into(outputs: Two, dy: Tensor, dr: Tensor | None, r: Tensor, w: Tensor | None, eps: float, offset: float, casting: str) -> None:
        _backward(outputs, dy.view(-1, cols), None if dr is None else dr.view(-1, cols), r.view(-1, cols), w, eps, float(offset))

    return into


def _backward(outputs: Two, dy: Tensor, dr: Tensor | None, x: Tensor, w: Tensor | None, eps: float, offset: float) -> None:
    """quack leaves dw in parts, a row for each program of a grid that it sizes itself; without rows there are none."""
    dx, dw = outputs
    if not x.shape[0]:
        dw.zero_()
        return
    programs = get_sm_count(x.shape[1], x.device)
    parts = None if w is None else torch.empty((programs, x.shape[1]), dtype=torch.float32, device=x.device)
    _rmsnorm_bwd(x, w, dy, rstd(x, eps), dx.view(x.shape), parts, None, dr, None, programs, weight_offset=offset)
    if parts is not None:
        dw.copy_(parts.sum(0))


def rstd(x: Tensor, eps: float) -> Tensor:
    """1 / sqrt(mean(x^2) + eps) of each row in float32: one read of x, then passes over a number a row."""
    norms: Tensor = torch.linalg.vector_norm(x, dim=-1, dtype=torch.float32)
    return norms.square_().mul_(1.0 / x.shape[-1]).add_(eps).rsqrt_()
