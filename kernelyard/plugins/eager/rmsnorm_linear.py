"""rmsnorm_linear and rmsnorm_linear_swiglu: the norm as Llama casts it, a product in float32, what follows it in float32, rounded once.

`composed` and `composed_gated` call the registered ops, so that whatever serves those best serves here: rmsnorm and then matmul or
linear_swiglu. It is what a call of many rows takes, where a product reuses the weight and a norm of its own costs little.
`plain` and `plain_gated` are what models have, each step rounded. They are there to be timed against.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from kernelyard.plugins.eager.matmul import wide_product
from kernelyard.registry.operator import operator
from kernelyard.registry.spec import Config, Workload

Linear = Callable[[Tensor, Tensor, Tensor, Tensor | None, float, bool], Tensor]
Gated = Callable[[Tensor, Tensor, Tensor, float, bool], Tensor]


def eager(workload: Workload, config: Config) -> Linear:
    """The formula, for every workload."""
    return _linear


def eager_gated(workload: Workload, config: Config) -> Gated:
    """The formula with both layers, for every workload."""
    return _gated


def composed(workload: Workload, config: Config) -> Linear:
    """Two registered ops."""
    rmsnorm, matmul = operator("rmsnorm"), operator("matmul")

    def linear(x: Tensor, norm: Tensor, w: Tensor, bias: Tensor | None, eps: float, constant_weights: bool) -> Tensor:
        normal = rmsnorm(x, norm, eps, casting="llama")
        out: Tensor = matmul(normal.reshape(math.prod(x.shape[:-1]), x.shape[-1]), w.mT, bias)
        return out.view(*x.shape[:-1], w.shape[0])

    return linear


def composed_gated(workload: Workload, config: Config) -> Gated:
    """Two registered ops."""
    rmsnorm, linear_swiglu = operator("rmsnorm"), operator("linear_swiglu")

    def gated(x: Tensor, norm: Tensor, w: Tensor, eps: float, constant_weights: bool) -> Tensor:
        out: Tensor = linear_swiglu(rmsnorm(x, norm, eps, casting="llama"), w)
        return out

    return gated


def plain(workload: Workload, config: Config) -> Linear:
    """What is written in models."""
    return _rounded_often


def plain_gated(workload: Workload, config: Config) -> Gated:
    """What is written in models."""
    return _gated_rounded_often


def _linear(x: Tensor, norm: Tensor, w: Tensor, bias: Tensor | None, eps: float, constant_weights: bool) -> Tensor:
    out = wide_product(_normalised(x, norm, eps), w.mT)
    return (out if bias is None else out + bias).to(x.dtype)


def _gated(x: Tensor, norm: Tensor, w: Tensor, eps: float, constant_weights: bool) -> Tensor:
    gate, up = wide_product(_normalised(x, norm, eps), w.mT).chunk(2, -1)
    return (F.silu(gate) * up).to(x.dtype)


def _rounded_often(x: Tensor, norm: Tensor, w: Tensor, bias: Tensor | None, eps: float, constant_weights: bool) -> Tensor:
    return F.linear(_normalised(x, norm, eps), w, bias)


def _gated_rounded_often(x: Tensor, norm: Tensor, w: Tensor, eps: float, constant_weights: bool) -> Tensor:
    gate, up = F.linear(_normalised(x, norm, eps), w).chunk(2, -1)
    return F.silu(gate) * up


def _normalised(x: Tensor, norm: Tensor, eps: float) -> Tensor:
    wide = x.to(torch.float32)
    return norm * (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)).to(x.dtype)
