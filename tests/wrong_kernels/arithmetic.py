"""Kernels that compute something else."""

from __future__ import annotations

import torch
from torch import Tensor

from tests.wrong_kernels.catalogue import Entry, calling, rmsnorm, softmax, vector_add


def finish(x: Tensor, w: Tensor, factor: Tensor) -> Tensor:
    return (x.float() * factor * w.float()).to(x.dtype).contiguous()


def mean_square(x: Tensor) -> Tensor:
    return x.float().square().mean(-1, keepdim=True)


def mask_off_by_one(x, w, eps, offset, casting):
    total = x[:, :-1].float().square().sum(-1, keepdim=True)
    return finish(x, w, torch.rsqrt(total / x.shape[-1] + eps))


def mask_off_by_one_softmax(x):
    y = x.float()
    top = y.amax(-1, keepdim=True)
    total = torch.exp(y - top)[:, :-1].sum(-1, keepdim=True)
    return (torch.exp(y - top) / total).to(x.dtype).contiguous()


def eps_outside_the_root(x, w, eps, offset, casting):
    return finish(x, w, 1 / (mean_square(x).sqrt() + eps))


def eps_missing(x, w, eps, offset, casting):
    return finish(x, w, torch.rsqrt(mean_square(x)))


def weight_ignored(x, w, eps, offset, casting):
    return finish(x, torch.ones_like(w), torch.rsqrt(mean_square(x) + eps))


def weight_shifted(x, w, eps, offset, casting):
    return finish(x, w.roll(1), torch.rsqrt(mean_square(x) + eps))


def sum_for_mean(x, w, eps, offset, casting):
    return finish(x, w, torch.rsqrt(x.float().square().sum(-1, keepdim=True) + eps))


def padded_width_divides(x, w, eps, offset, casting):
    padded = 1 << (x.shape[-1] - 1).bit_length()
    return finish(x, w, torch.rsqrt(x.float().square().sum(-1, keepdim=True) / padded + eps))


def first_row_for_all(x, w, eps, offset, casting):
    return finish(x, w, torch.rsqrt(mean_square(x)[:1] + eps))


def half_accumulation(x, w, eps, offset, casting):
    low = x.half() if x.dtype == torch.float16 else x.bfloat16()
    return finish(x, w, torch.rsqrt(low.square().mean(-1, keepdim=True, dtype=low.dtype).float() + eps))


def half_sum_of_scaled_squares(x, w, eps, offset, casting):
    """Careful of overflow, careless of rounding: each of the additions rounds to float16."""
    top = x.float().abs().amax(-1, keepdim=True).clamp(min=1e-30) if x.numel() else torch.ones(x.shape[0], 1, device=x.device)
    squares, total = (x.float() / top).square().half(), torch.zeros(x.shape[0], 1, dtype=torch.float16, device=x.device)
    for col in squares.split(1, -1):
        total = total + col
    return finish(x, w, torch.rsqrt(total.float() / x.shape[-1] * top.square() + eps))


def half_squares(x, w, eps, offset, casting):
    return finish(x, w, torch.rsqrt(x.square().float().mean(-1, keepdim=True) + eps))


def rounds_twice(x, w, eps, offset, casting):
    return finish((x.float() * torch.rsqrt(mean_square(x) + eps)).bfloat16().to(x.dtype), w, torch.ones((), device=x.device))


def nan_swallowed(x, w, eps, offset, casting):
    return torch.nan_to_num(rmsnorm(x, w, eps, offset, casting), nan=0.0)


def nan_dropped_by_maximum(x):
    y = x.float()
    top = torch.nan_to_num(y, nan=-torch.inf).amax(-1, keepdim=True)
    return softmax(torch.where(y.isnan(), -torch.inf, y - top).to(x.dtype))


def infinity_clamped(x):
    return softmax(x.clamp(-1e4, 1e4))


def no_maximum_subtracted(x):
    e = torch.exp(x.float())
    y = (e / e.sum(-1, keepdim=True)).to(x.dtype)
    return torch.where((x == -torch.inf).all(-1, keepdim=True), y.new_zeros(()), y).contiguous()


def masked_rows_are_nan(x):
    return torch.softmax(x.float(), -1).to(x.dtype).contiguous()


def masked_rows_are_uniform(x):
    y = x.float().clamp(min=-1e30)
    return torch.softmax(y, -1).to(x.dtype).contiguous()


def offset_wraps(a, b):
    index = torch.arange(a.numel(), device=a.device) & 0x7FFF
    return vector_add(a[index], b[index])


def second_operand_ignored(a, b):
    return a.clone()


def strides_ignored(x, w, eps, offset, casting):
    packed = x.as_strided(x.shape, (x.shape[-1], 1)) if x.numel() and x.stride() != (0, 1) else x
    return rmsnorm(packed, w, eps, offset, casting)


def reduced_twice(x, w, eps, offset, casting):
    again = x[:, :8].float().square().sum(-1, keepdim=True) / x.shape[-1]
    return finish(x, w, torch.rsqrt(mean_square(x) + again + eps))


ARITHMETIC = (
    Entry("mask_off_by_one", calling(mask_off_by_one), "when the last column is left out"),
    Entry("mask_off_by_one_softmax", calling(mask_off_by_one_softmax), "when the last column is left out", "softmax"),
    Entry("eps_outside_the_root", calling(eps_outside_the_root), "eps ignored or in the wrong place"),
    Entry("eps_missing", calling(eps_missing), "eps=0"),
    Entry("weight_ignored", calling(weight_ignored), "w ignored"),
    Entry("weight_shifted", calling(weight_shifted), "w shifted by one"),
    Entry("sum_for_mean", calling(sum_for_mean), "off by a factor of"),
    Entry("padded_width_divides", calling(padded_width_divides), "off by a factor of"),
    Entry("first_row_for_all", calling(first_row_for_all), "each row is off by a factor of its own"),
    Entry("half_accumulation", calling(half_accumulation), "a lower precision in the accumulation"),
    Entry(
        "half_sum_of_scaled_squares", calling(half_sum_of_scaled_squares), "times that of torch.eager", "loose rmsnorm", defence="eager"
    ),
    Entry("half_squares", calling(half_squares), "elements differ"),
    Entry("rounds_twice", calling(rounds_twice), "a rounding too many"),
    Entry("nan_swallowed", calling(nan_swallowed), "NaN swallowed", defence="nonfinite"),
    Entry("nan_dropped_by_maximum", calling(nan_dropped_by_maximum), "NaN swallowed", "softmax"),
    Entry("infinity_clamped", calling(infinity_clamped), "NaN swallowed", "softmax"),
    Entry("no_maximum_subtracted", calling(no_maximum_subtracted), "elements are NaN that should not be", "softmax"),
    Entry("masked_rows_are_nan", calling(masked_rows_are_nan), "elements are NaN that should not be", "softmax", defence="edges"),
    Entry("masked_rows_are_uniform", calling(masked_rows_are_uniform), "want 0", "softmax"),
    Entry("offset_wraps", calling(offset_wraps), "from element 32768 on (of 65537). A missing tail, or offsets that wrap", "vector_add"),
    Entry("second_operand_ignored", calling(second_operand_ignored), "b ignored", "vector_add"),
    Entry("strides_ignored", calling(strides_ignored), "elements differ"),
    Entry("reduced_twice", calling(reduced_twice), "each row is off by a factor of its own", defence="values"),
)
