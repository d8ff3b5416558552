"""softmax_backward by torch's own kernel, which is exact on dead rows too: their y is zero.

On a GPU that kernel takes dy * y as a tensor of its own, and so rounds it: in 16 bits, off by a second rounding (3 of 62 values
outside of the contract in float16). There the formula serves, and torch's kernel is what others are timed against.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from kernelyard.registry.spec import Config, Workload


def eager(workload: Workload, config: Config) -> Callable[[Tensor, Tensor], Tensor]:
    """torch's kernel where it rounds once."""
    return _formula if workload.device == "cuda" and workload.dtype != "float32" else _torch


def plain(workload: Workload, config: Config) -> Callable[[Tensor, Tensor], Tensor]:
    """torch's kernel, which autograd calls for torch.softmax."""
    return _torch


def traceable(workload: Workload, config: Config) -> Callable[[Tensor, Tensor], Tensor]:
    """The formula in float32, which a compiler fuses."""
    return _formula


def _torch(dy: Tensor, y: Tensor) -> Tensor:
    return torch._softmax_backward_data(dy, y, -1, y.dtype).contiguous()


def _formula(dy: Tensor, y: Tensor) -> Tensor:
    wide, dy32 = y.to(torch.float32), dy.to(torch.float32)
    return (wide * (dy32 - (wide * dy32).sum(-1, keepdim=True))).to(y.dtype).contiguous()
