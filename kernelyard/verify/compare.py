"""Comparing a result with its reference: which elements are off, by how much at worst, and by how much in all.

Everything goes chunk by chunk: of what is as large as the result itself only the mask of wrong elements is made, and
only where there are some. Sizes and offsets are Python's integers, which do not end at 2^31.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from kernelyard.registry.spec import Tolerance

CPU_CHUNK, CUDA_CHUNK = 1 << 15, 1 << 25
"""Elements at a time. On a CPU, what stays in the L2 cache, and what torch does in one thread: at twice the size its
threads meet after each operation, which took 9 ms a meeting on two cores with other work, 8 us without threads."""


@dataclass(frozen=True, slots=True)
class Errors:
    """The largest errors over elements where both are finite; `relative` over those that are no denormals.

    `ulp` counts units in the last place of the output's dtype at the reference's magnitude. `norm` is that of all
    elements together: ||got - want|| / ||want||, 0 where the reference is all zeros.
    """

    absolute: float = 0.0
    relative: float = 0.0
    ulp: float = 0.0
    norm: float = 0.0


def wrong(got: Tensor, want: Tensor, tolerance: Tolerance, nonfinite: bool = True) -> Tensor | None:
    """A mask, in the shape of `want`, of the elements outside the tolerance; None when there are none.

    NaN must stand where the reference has NaN, and inf of the same sign where it has inf or leaves the dtype's range.
    Without `nonfinite` the places where the reference is not finite are not looked at.
    """
    bad: Tensor | None = None
    for start, (g, w) in _chunks(got, want):
        mask = _wrong(g, w, tolerance, nonfinite)
        if mask is not None:
            if bad is None:
                bad = torch.zeros(want.numel(), dtype=torch.bool, device=want.device)
            bad[start : start + mask.numel()] = mask
    return None if bad is None else bad.view(want.shape)


def errors(got: Tensor, want: Tensor) -> Errors:
    """How far the worst elements are off, and all of them together."""
    worst, error_square, want_square = Errors(), 0.0, 0.0
    for _, (g, w) in _chunks(got, want):
        error = (g.to(w.dtype) - w).abs_().nan_to_num_(0.0, 0.0, 0.0)
        worst = most((worst, _worst(error, g.dtype, w)))
        error_square += _norm(error) ** 2
        want_square += _norm(w.nan_to_num(0.0, 0.0, 0.0)) ** 2
    return replace(worst, norm=(error_square / want_square) ** 0.5 if want_square else 0.0)


def most(of: Iterable[Errors]) -> Errors:
    """The largest of each kind."""
    columns = zip(*((e.absolute, e.relative, e.ulp, e.norm) for e in of), strict=True)
    return Errors(*(max(column) for column in columns))


def differing(one: Tensor, other: Tensor) -> int:
    """How many elements of two tensors of one shape are not equal; for integers, or anything seen as its bits."""
    return sum(int((a != b).sum()) for _, (a, b) in _chunks(one, other) if not torch.equal(a, b))


def has_nan(got: Tensor, want: Tensor) -> bool:
    """Whether a NaN stands where the reference is finite."""
    return any(bool((g.isnan() & w.isfinite()).any()) for _, (g, w) in _chunks(got, want))


def first_difference(one: Tensor, other: Tensor) -> int:
    """The flat index of the first element in which two tensors of one shape differ; -1 where none does."""
    for start, (a, b) in _chunks(one, other):
        if not torch.equal(a, b):
            return start + int((a != b).to(torch.uint8).argmax())
    return -1


def first(mask: Tensor) -> int:
    """The flat index of the first element that is set; -1 where none is."""
    for start, (part, _) in _chunks(mask, mask):
        if bool(part.any()):
            return start + int(part.to(torch.uint8).argmax())
    return -1


def effective(want: Tensor) -> float:
    """How many elements of equal size would weigh as much in a norm as these do: (sum of squares)^2 / sum of fourth powers."""
    squares, fourths = 0.0, 0.0
    for _, (w, _same) in _chunks(want, want):
        finite = w.nan_to_num(0.0, 0.0, 0.0)
        squares += _norm(finite) ** 2
        fourths += float(torch.linalg.vector_norm(finite, 4, dtype=torch.float64)) ** 4
    return squares**2 / fourths if fourths else 0.0


def _chunks(got: Tensor, want: Tensor) -> Iterator[tuple[int, tuple[Tensor, Tensor]]]:
    """Where each begins, and the two."""
    size = CPU_CHUNK if want.device.type == "cpu" else CUDA_CHUNK
    flat = got.reshape(-1), want.reshape(-1)
    for start in range(0, want.numel(), size):
        yield start, (flat[0][start : start + size], flat[1][start : start + size])


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


def _worst(error: Tensor, dtype: torch.dtype, want: Tensor) -> Errors:
    """The largest absolute error, relative error, and error in units of the last place of `dtype`."""
    absolute = float(error.max())
    if absolute == 0.0 or not dtype.is_floating_point:
        return Errors(absolute)
    info = torch.finfo(dtype)
    power = _power_of_two(want)
    ulp = float((error / (power * info.eps).clamp_(min=info.smallest_normal * info.eps)).nan_to_num_(0.0, 0.0, 0.0).max())
    relative = float((error / want.abs()).masked_fill_(power < info.smallest_normal, 0.0).nan_to_num_(0.0, 0.0, 0.0).max())
    return Errors(absolute, relative, ulp)


def _norm(x: Tensor) -> float:
    return float(torch.linalg.vector_norm(x, dtype=torch.float64))


def _power_of_two(x: Tensor) -> Tensor:
    """2 ** floor(log2 |x|): the number with its mantissa's bits cleared."""
    kind, exponent = (torch.int64, 0x7FF << 52) if x.dtype == torch.float64 else (torch.int32, 0xFF << 23)
    return (x.view(kind) & exponent).view(x.dtype)
