"""Comparing a result with its reference: which elements are off, and by how much at worst."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kernelyard.registry.spec import Tolerance

CPU_CHUNK, CUDA_CHUNK = 1 << 15, 1 << 25
"""Elements at a time. On a CPU, what stays in the L2 cache, and what torch does in one thread: at twice the size its
threads meet after each operation, which took 9 ms a meeting on two cores with other work, 8 us without threads."""


@dataclass(frozen=True, slots=True)
class Errors:
    """The largest errors over elements where both are finite; `relative` over those that are no denormals.

    `ulp` counts units in the last place of the output's dtype at the reference's magnitude.
    """

    absolute: float = 0.0
    relative: float = 0.0
    ulp: float = 0.0


def wrong(got: Tensor, want: Tensor, tolerance: Tolerance, nonfinite: bool = True) -> Tensor | None:
    """A mask, in the shape of `want`, of the elements outside the tolerance; None when there are none.

    NaN must stand where the reference has NaN, and inf of the same sign where it has inf or leaves the dtype's range.
    Without `nonfinite` the places where the reference is not finite are not looked at.
    """
    masks = [_wrong(g, w, tolerance, nonfinite) for g, w in _chunks(got, want)]
    if all(mask is None for mask in masks):
        return None
    sizes = [chunk.numel() for chunk, _ in _chunks(want, want)]
    blank = [torch.zeros(n, dtype=torch.bool, device=want.device) if m is None else m for m, n in zip(masks, sizes, strict=True)]
    return torch.cat(blank).view(want.shape)


def errors(got: Tensor, want: Tensor) -> Errors:
    """How far the worst elements are off."""
    worst = [_errors(g, w) for g, w in _chunks(got, want)]
    return Errors(*(max(column) for column in zip(*worst, strict=True))) if worst else Errors()


def _chunks(got: Tensor, want: Tensor) -> list[tuple[Tensor, Tensor]]:
    size = CPU_CHUNK if want.device.type == "cpu" else CUDA_CHUNK
    if want.numel() == 0:
        return []
    return list(zip(torch.split(got.reshape(-1), size), torch.split(want.reshape(-1), size), strict=True))


def _wrong(got: Tensor, want: Tensor, tolerance: Tolerance, nonfinite: bool) -> Tensor | None:
    wide = got.to(want.dtype)
    allowed = want.abs().mul_(tolerance.relative).add_(tolerance.absolute)
    excess = (wide - want).abs_().sub_(allowed)
    if float(excess.max()) <= 0.0:  # max gives NaN when there is one
        return None
    bad = ~(excess <= 0.0)  # bad with a NaN or an inf in it, until excused
    if not nonfinite:
        bad &= want.isfinite()
    else:
        beyond = want.abs() + allowed >= torch.finfo(got.dtype).max if got.dtype.is_floating_point else want.isinf()
        bad &= ~(wide.isnan() & want.isnan()) & ~(wide.isinf() & beyond & (wide.sign() == want.sign()))
    return bad if bool(bad.any()) else None


def _errors(got: Tensor, want: Tensor) -> tuple[float, float, float]:
    error = (got.to(want.dtype) - want).abs_().nan_to_num_(0.0, 0.0, 0.0)
    absolute = float(error.max())
    if absolute == 0.0 or not got.dtype.is_floating_point:
        return absolute, 0.0, 0.0
    info = torch.finfo(got.dtype)
    power = _power_of_two(want)
    ulp = float((error / (power * info.eps).clamp_(min=info.smallest_normal * info.eps)).nan_to_num_(0.0, 0.0, 0.0).max())
    relative = float((error / want.abs()).masked_fill_(power < info.smallest_normal, 0.0).nan_to_num_(0.0, 0.0, 0.0).max())
    return absolute, relative, ulp


def _power_of_two(x: Tensor) -> Tensor:
    """2 ** floor(log2 |x|): the number with its mantissa's bits cleared."""
    kind, exponent = (torch.int64, 0x7FF << 52) if x.dtype == torch.float64 else (torch.int32, 0xFF << 23)
    return (x.view(kind) & exponent).view(x.dtype)
