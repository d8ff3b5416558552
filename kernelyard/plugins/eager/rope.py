"""rope by looking up each token's angles and rotating in float32.

`plain` is Hugging Face's way, in x's own dtype, whose roundings the contract does not grant: there to be timed against.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from kernelyard.errors import InvalidInput
from kernelyard.registry.spec import Config, Workload

Rope = Callable[..., Tensor]


def eager(workload: Workload, config: Config) -> Rope:
    """The rotation of the workload's pairs; on a CPU a position out of range is refused, a negative one too."""
    rotate = traceable(workload, config)

    def rope(x: Tensor, cos: Tensor, sin: Tensor, positions: Tensor, style: str, inverse: bool) -> Tensor:
        try:
            return rotate(x, cos, sin, positions, style, inverse)
        except IndexError as error:
            asked = f"rope: a position is out of range, cos and sin have {cos.shape[0]} rows."
            raise InvalidInput(asked, do="Give positions from 0 to rows - 1.") from error

    return rope


def traceable(workload: Workload, config: Config) -> Rope:
    """The rotation alone."""
    return _half if workload.static("style") == "half" else _interleaved


def plain(workload: Workload, config: Config) -> Rope:
    """What is written in models: products in x's dtype, each rounded."""
    return _half_rounded if workload.static("style") == "half" else _interleaved


def _half(x: Tensor, cos: Tensor, sin: Tensor, positions: Tensor, style: str, inverse: bool) -> Tensor:
    p, q = x.to(torch.float32).chunk(2, -1)
    return torch.cat(_rotated(p, q, cos, sin, positions, inverse), -1).to(x.dtype)


def _interleaved(x: Tensor, cos: Tensor, sin: Tensor, positions: Tensor, style: str, inverse: bool) -> Tensor:
    p, q = x.to(torch.float32).view(*x.shape[:-1], -1, 2).unbind(-1)
    return torch.stack(_rotated(p, q, cos, sin, positions, inverse), -1).flatten(-2).to(x.dtype)


def _rotated(p: Tensor, q: Tensor, cos: Tensor, sin: Tensor, positions: Tensor, inverse: bool) -> tuple[Tensor, Tensor]:
    c, s = (_looked_up(table, positions).to(torch.float32) for table in (cos, sin))
    s = -s if inverse else s
    return p * c - q * s, q * c + p * s


def _looked_up(table: Tensor, positions: Tensor) -> Tensor:
    """index_select refuses a negative position, which indexing takes from the end; compiled it would take it so too."""
    rows = positions.reshape(-1)
    if torch.compiler.is_compiling():
        rows = torch.where(rows < 0, table.shape[0], rows)
    return table.index_select(0, rows).view(*positions.shape, 1, table.shape[1])


def _half_rounded(x: Tensor, cos: Tensor, sin: Tensor, positions: Tensor, style: str, inverse: bool) -> Tensor:
    c, s = (torch.cat((rows, rows), -1).to(x.dtype) for rows in (_looked_up(cos, positions), _looked_up(sin, positions)))
    p, q = x.chunk(2, -1)
    turned = torch.cat((q, -p) if inverse else (-q, p), -1)
    return x * c + turned * s
