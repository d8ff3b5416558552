"""softmax by torch.softmax, with zeros for rows of all -inf, which torch makes NaN.

Such a row is NaN in its first element, as are rows with a NaN or +inf. On a CPU that column is summed and looked at, 2 to 3 us, and
only a NaN there costs more. On a GPU looking would wait for the device and break CUDA graphs, so every call pays one more read
of x and a read and write of the result: 5 passes where torch.softmax makes 2. Hence `plain`, which a user would write, is what
other kernels are timed against. Lost: torch.where on the result (a new tensor), (x == -inf).all (a mask as large as x).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from kernelyard.registry.spec import Config, Workload

Softmax = Callable[[Tensor], Tensor]


def eager(workload: Workload, config: Config) -> Softmax:
    """The contract, by the cheapest means of the device."""
    return _looking if workload.device == "cpu" and workload["x"].numel else _masking


def plain(workload: Workload, config: Config) -> Softmax:
    """torch.softmax, rows of all -inf left as NaN."""
    return _plain


def traceable(workload: Workload, config: Config) -> Softmax:
    """The contract without a look at values: a compiler sees the maximum that softmax takes anyway."""
    return _selecting


def _plain(x: Tensor) -> Tensor:
    return torch.softmax(x, -1)


def _looking(x: Tensor) -> Tensor:
    y = torch.softmax(x, -1)
    total = y.select(-1, 0).sum().item()
    return y if total == total else _clear_dead_rows(x, y)


def _masking(x: Tensor) -> Tensor:
    y = torch.softmax(x, -1)
    return _clear_dead_rows(x, y) if y.numel() else y


def _clear_dead_rows(x: Tensor, y: Tensor) -> Tensor:
    return y.masked_fill_(x.amax(-1, keepdim=True) == -torch.inf, 0.0)


def _selecting(x: Tensor) -> Tensor:
    if x.numel() == 0:
        return torch.empty(x.shape, dtype=x.dtype, device=x.device)
    wide = x.to(torch.float32)
    dead = wide.amax(-1, keepdim=True) == -torch.inf
    return torch.where(dead, 0.0, torch.softmax(wide, -1)).to(x.dtype).contiguous()
