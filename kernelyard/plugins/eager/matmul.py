"""matmul by torch's own products, which cuBLAS and oneDNN serve; what follows the product in float32, rounded once.

`plain` is what models have: a linear layer, an activation, a sum, each rounded to the tensors' dtype. It is there to be timed against.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.nn import functional as F

from kernelyard.registry.spec import Config, Workload

Matmul = Callable[[Tensor, Tensor, Tensor | None, Tensor | None, float, str, str], Tensor]


def eager(workload: Workload, config: Config) -> Matmul:
    """A product alone where nothing follows it; else one in float32."""
    bare = workload.static("activation") == "none" and not workload.has("bias") and not workload.has("residual")
    single = workload.dtype == "float32"
    return _in_float32 if single else _bare if bare else _wide


def plain(workload: Workload, config: Config) -> Matmul:
    """What is written in models."""
    return _rounded_often


def traceable(workload: Workload, config: Config) -> Matmul:
    """What is written in models, to be compiled: nothing turns a switch of torch's."""
    return _formula


def _bare(a: Tensor, b: Tensor, bias: Tensor | None, residual: Tensor | None, scale: float, activation: str, precision: str) -> Tensor:
    return a @ b if scale == 1.0 else _wide(a, b, bias, residual, scale, activation, precision)


def _in_float32(
    a: Tensor, b: Tensor, bias: Tensor | None, residual: Tensor | None, scale: float, activation: str, precision: str
) -> Tensor:
    with _tf32(precision == "tf32", a):
        product = a @ b
    return _ended(product, bias, residual, scale, activation)


def _wide(a: Tensor, b: Tensor, bias: Tensor | None, residual: Tensor | None, scale: float, activation: str, precision: str) -> Tensor:
    return _ended(wide_product(a, b), bias, residual, scale, activation).to(a.dtype)


def wide_product(a: Tensor, b: Tensor) -> Tensor:
    """In float32: half-precision factors by the library's own float32 output on a GPU, by wide factors on a CPU."""
    if a.dtype == torch.float32:
        with _tf32(False, a):
            return a @ b
    if a.is_cuda and a.numel() and b.numel():
        if b.dim() == 2:
            return torch.mm(a.reshape(-1, a.shape[-1]), b, out_dtype=torch.float32).view(*a.shape[:-1], b.shape[-1])
        flat = torch.bmm(a.reshape(-1, *a.shape[-2:]), b.reshape(-1, *b.shape[-2:]), out_dtype=torch.float32)
        return flat.view(*a.shape[:-1], b.shape[-1])
    return a.float() @ b.float()


def _ended(product: Tensor, bias: Tensor | None, residual: Tensor | None, scale: float, activation: str) -> Tensor:
    out = activated(product if bias is None else product + bias, activation)
    out = out if scale == 1.0 else out * scale
    return out if residual is None else out + residual


def _rounded_often(
    a: Tensor, b: Tensor, bias: Tensor | None, residual: Tensor | None, scale: float, activation: str, precision: str
) -> Tensor:
    with _tf32(precision == "tf32", a):
        return _formula(a, b, bias, residual, scale, activation, precision)


def _formula(
    a: Tensor, b: Tensor, bias: Tensor | None, residual: Tensor | None, scale: float, activation: str, precision: str
) -> Tensor:
    product = a @ b if bias is None else F.linear(a, b.mT, bias) if b.dim() == 2 else a @ b + bias
    return _ended(product, None, residual, scale, activation)


def activated(x: Tensor, activation: str) -> Tensor:
    """The activation of that name, in the precision of x."""
    if activation == "none":
        return x
    if activation == "gelu_tanh":
        return F.gelu(x, approximate="tanh")
    return {"relu": torch.relu, "gelu": F.gelu, "silu": F.silu}[activation](x)


@contextmanager
def _tf32(wanted: bool, x: Tensor) -> Iterator[None]:
    """torch's switch for TF32 as the call asks, and back; a CPU has none."""
    switch = torch.backends.cuda.matmul
    if not x.is_cuda or x.dtype != torch.float32 or switch.allow_tf32 == wanted:
        yield
        return
    switch.allow_tf32 = wanted
    try:
        yield
    finally:
        switch.allow_tf32 = not wanted
