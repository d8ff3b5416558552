"""rope by looking up each token's angles and rotating in float32, as Hugging Face writes it but for the rounding."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from kernelyard.registry.spec import Config, Workload


def eager(workload: Workload, config: Config) -> Callable[..., Tensor]:
    """The rotation of the workload's pairs."""
    return _half if workload.static("style") == "half" else _interleaved


def _half(x: Tensor, cos: Tensor, sin: Tensor, positions: Tensor, style: str, inverse: bool) -> Tensor:
    p, q = x.to(torch.float32).chunk(2, -1)
    return torch.cat(_rotated(p, q, cos, sin, positions, inverse), -1).to(x.dtype)


def _interleaved(x: Tensor, cos: Tensor, sin: Tensor, positions: Tensor, style: str, inverse: bool) -> Tensor:
    p, q = x.to(torch.float32).view(*x.shape[:-1], -1, 2).unbind(-1)
    return torch.stack(_rotated(p, q, cos, sin, positions, inverse), -1).flatten(-2).to(x.dtype)


def _rotated(p: Tensor, q: Tensor, cos: Tensor, sin: Tensor, positions: Tensor, inverse: bool) -> tuple[Tensor, Tensor]:
    c, s = (_looked_up(table, positions) for table in (cos, sin))
    s = -s if inverse else s
    return p * c - q * s, q * c + p * s


def _looked_up(table: Tensor, positions: Tensor) -> Tensor:
    """index_select, because indexing would take a negative position from the end."""
    rows = table.index_select(0, positions.reshape(-1))
    return rows.to(torch.float32).view(*positions.shape, 1, table.shape[1])
