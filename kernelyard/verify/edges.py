"""Edge values: what a tensor is filled with, by name. Each keeps the op's result defined where its contract says so.

`random` leaves the op's own typical values. `small` (near sqrt of a usual eps) and `last` (the value that decides
stands in the last column) have a defined result for every op; the others only where `Op.edges` names them.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Generator, Tensor

ALWAYS = ("small", "last")
"""Checked for every op beside those that it names."""


def fill(edge: str, tensor: Tensor, generator: Generator) -> None:
    """Overwrites `tensor` in place; rows that a stride of 0 repeats are written once."""
    if edge == "random" or tensor.numel() == 0:
        return
    once = tensor[tuple(slice(0, 1) if stride == 0 else slice(None) for stride in tensor.stride())]
    rows = once.reshape(-1, once.shape[-1]) if once.dim() > 1 else once.reshape(1, -1)
    once.copy_(FILLS[edge](rows, generator).reshape(once.shape).to(once.dtype))


def _zeros(x: Tensor, generator: Generator) -> Tensor:
    return torch.zeros_like(x)


def _repeated(x: Tensor, generator: Generator) -> Tensor:
    """300: its square passes the largest float16, so that a sum of squares in float16 shows."""
    return torch.full_like(x, 300.0)


def _small(x: Tensor, generator: Generator) -> Tensor:
    """Mean squares near 1e-6, a usual eps, where eps inside the root and outside differ by half."""
    return x.float() * 2.0**-10


def _large(x: Tensor, generator: Generator) -> Tensor:
    """As large as can be with a sum of squares of a row that float32 holds with a factor of 16 to spare."""
    most = min(torch.finfo(x.dtype).max, (torch.finfo(torch.float32).max / max(x.shape[-1], 1)) ** 0.5 / 4)
    return (_uniform(x, generator, 0.5, 1.0) * _signs(x, generator)).mul_(most)


def _denormal(x: Tensor, generator: Generator) -> Tensor:
    """Below the smallest normal number of the dtype: flushing to zero shows where it matters."""
    parts = _uniform(x, generator, 0.1, 0.9).double() * _signs(x, generator)
    return parts.mul_(torch.finfo(x.dtype).smallest_normal)


def _last(x: Tensor, generator: Generator) -> Tensor:
    """Noise of 0.01 and a 9 in the last column: a reduction that stops early is far off."""
    y = x.float() * 0.01
    y[:, -1] = 9.0
    return y


def _nan(x: Tensor, generator: Generator) -> Tensor:
    return _scatter(x, generator, torch.nan)


def _inf(x: Tensor, generator: Generator) -> Tensor:
    y = _scatter(x, generator, torch.inf)
    return torch.where(torch.isinf(y), y * _signs(x, generator), y)


def _masked(x: Tensor, generator: Generator) -> Tensor:
    """-inf in about half of the places, with a finite value in every row."""
    y = torch.where(_uniform(x, generator, 0, 1) < 0.5, -torch.inf, x.float())
    y[:, -1] = torch.where(torch.isinf(y).all(-1), x[:, -1].float(), y[:, -1])
    return y


def _all_masked(x: Tensor, generator: Generator) -> Tensor:
    """Every other row, the first among them, is -inf throughout."""
    y = x.float().clone()
    y[::2] = -torch.inf
    return y


def _scatter(x: Tensor, generator: Generator, value: float) -> Tensor:
    """`value` at one place of every other row, the first column, the last and random ones in turn; other rows stay clean."""
    y = x.float().clone()
    rows = torch.arange(0, x.shape[0], 2, device=x.device)
    cols = torch.randint(0, x.shape[1], rows.shape, generator=generator, device=x.device)
    cols[0::3], cols[1::3] = 0, x.shape[1] - 1
    y[rows, cols] = value
    return y


def _uniform(x: Tensor, generator: Generator, low: float, high: float) -> Tensor:
    return torch.empty(x.shape, dtype=torch.float32, device=x.device).uniform_(low, high, generator=generator)


def _signs(x: Tensor, generator: Generator) -> Tensor:
    return torch.where(_uniform(x, generator, 0, 1) < 0.5, -1.0, 1.0)


FILLS: dict[str, Callable[[Tensor, Generator], Tensor]] = {
    "zeros": _zeros,
    "repeated": _repeated,
    "small": _small,
    "large": _large,
    "denormal": _denormal,
    "last": _last,
    "nan": _nan,
    "inf": _inf,
    "masked": _masked,
    "all_masked": _all_masked,
}
