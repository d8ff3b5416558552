"""rmsnorm by torch.nn.functional.rms_norm where that keeps the contract, else by its formula in float32.

torch's own keeps it for 'fp32' casting without an offset and with one dtype. A weight of another dtype makes it warn and leave its
fused kernel, so that takes the formula.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import rms_norm

from kernelyard.registry.spec import Config, Workload

Rmsnorm = Callable[..., Tensor]


def eager(workload: Workload, config: Config) -> Rmsnorm:
    """torch's own kernel for the workloads it is exact on. The offset is a value, not part of the workload: looked at in the call."""
    if workload.static("casting") == "llama":
        return _llama
    same_dtype = not workload.has("w") or workload["w"].dtype == workload.dtype
    return _torch if same_dtype else _fp32


def _torch(x: Tensor, w: Tensor | None, eps: float, offset: float, casting: str) -> Tensor:
    if offset:
        return _fp32(x, w, eps, offset, casting)
    return rms_norm(x, (x.shape[-1],), w, eps).contiguous()


def _fp32(x: Tensor, w: Tensor | None, eps: float, offset: float, casting: str) -> Tensor:
    y = _normal(x, eps)
    if w is not None:
        y = y * (w.to(torch.float32) + offset)
    return y.to(x.dtype).contiguous()


def _llama(x: Tensor, w: Tensor | None, eps: float, offset: float, casting: str) -> Tensor:
    y = _normal(x, eps).to(x.dtype)
    return (y if w is None else y * (w.to(torch.float32) + offset).to(x.dtype)).contiguous()


def _normal(x: Tensor, eps: Any) -> Tensor:
    wide = x.to(torch.float32)
    return wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
