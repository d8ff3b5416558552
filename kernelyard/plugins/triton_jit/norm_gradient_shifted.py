"""The gradients of rmsnorm and add_rmsnorm for rows that start anywhere, in 16-byte accesses.

The algorithm is `norm_gradient`'s persistent one, the tiles are those of `shifted`: a program takes rows of one kind, so that
the weight and its share of dw are shifted equally for all of them and stay in registers. The grid is a multiple of the kinds, and
each program takes every grid-th row. The first and last few elements of a row are loaded one by one, for the next row while this one is
worked on: a copy through shared memory takes 4 bytes at least.

Lost: tiles of several rows. Their sums are then no scalars, and Triton 3.6 keeps both ends in two layouts at once: 230 registers instead
of 127 for a row of 4095 and 8 warps.
"""

# A Triton function is typed by its compiler, not by mypy.
# mypy: disable-error-code="untyped-decorator, no-untyped-def"

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents

from kernelyard.plugins.triton_jit.shifted import ends, parts


@triton.jit
def load_ends(pointer, row, rows, cols, column, exist):
    """Head and tail of a row, float32; something that nobody uses where there is no such row."""
    place = tl.minimum(row, rows - 1).to(tl.int64) * cols + column
    return tl.load(pointer + place, mask=exist, other=0.0).to(tl.float32)


@triton.jit(do_not_specialize=["rows"])
def shifted_kernel(
    dx_ptr, share_ptr, dy_ptr, x_ptr, dr_ptr, w_ptr, rows, cols, eps, offset,
    VECTOR: tl.constexpr, PERIOD: tl.constexpr, WIDTH: tl.constexpr, COLS: tl.constexpr, STAGES: tl.constexpr, JOINT: tl.constexpr,
    HAS_WEIGHT: tl.constexpr, HAS_DR: tl.constexpr, LOAD: tl.constexpr, STORE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Every so many rows of one kind."""
    if PDL:
        gdc_launch_dependents()
    kind = tl.program_id(0) % PERIOD
    step = tl.num_programs(0)
    head, body = parts(kind, cols, VECTOR)
    column = tl.arange(0, COLS)
    whole = column < body
    at_ends, exist = ends(head, body, cols, VECTOR)
    gain = 1.0
    gain_ends = 1.0
    if HAS_WEIGHT:
        gain = tl.load(w_ptr + head + column, mask=whole, other=0.0).to(tl.float32) + offset
        gain_ends = tl.load(w_ptr + at_ends, mask=exist, other=0.0).to(tl.float32) + offset
    dw = tl.zeros((COLS,), tl.float32)
    dw_ends = tl.zeros((2 * VECTOR,), tl.float32)
    x_next = load_ends(x_ptr, tl.program_id(0), rows, cols, at_ends, exist)
    dy_next = load_ends(dy_ptr, tl.program_id(0), rows, cols, at_ends, exist)
    for turn in tl.range(0, tl.cdiv(rows - tl.program_id(0), step), num_stages=STAGES):
        row = tl.program_id(0) + turn * step
        start = row.to(tl.int64) * cols
        aligned = (start + VECTOR - 1) // VECTOR * VECTOR
        x = tl.load(x_ptr + aligned + column, mask=whole, other=0.0, eviction_policy=LOAD).to(tl.float32)
        dy = tl.load(dy_ptr + aligned + column, mask=whole, other=0.0, eviction_policy=LOAD).to(tl.float32)
        x_ends, dy_ends = x_next, dy_next
        x_next = load_ends(x_ptr, row + step, rows, cols, at_ends, exist)
        dy_next = load_ends(dy_ptr, row + step, rows, cols, at_ends, exist)
        g = dy * gain
        g_ends = dy_ends * gain_ends
        if JOINT:
            squares, products = tl.split(tl.sum(tl.join(x * x, g * x), 0))
        else:
            squares, products = tl.sum(x * x), tl.sum(g * x)
        squares += tl.sum(x_ends * x_ends)
        products += tl.sum(g_ends * x_ends)
        rstd = tl.rsqrt(squares / cols + eps)
        mean = products * rstd / cols
        n = x * rstd
        n_ends = x_ends * rstd
        dx = rstd * (g - n * mean)
        dx_ends = rstd * (g_ends - n_ends * mean)
        if HAS_DR:
            dx += tl.load(dr_ptr + aligned + column, mask=whole, other=0.0, eviction_policy=LOAD).to(tl.float32)
            dx_ends += load_ends(dr_ptr, row, rows, cols, at_ends, exist)
        tl.store(dx_ptr + aligned + column, dx.to(dx_ptr.dtype.element_ty), mask=whole, eviction_policy=STORE)
        tl.store(dx_ptr + start + at_ends, dx_ends.to(dx_ptr.dtype.element_ty), mask=exist)
        if HAS_WEIGHT:
            dw += dy * n
            dw_ends += dy_ends * n_ends
    if HAS_WEIGHT:
        share = share_ptr + tl.program_id(0).to(tl.int64) * WIDTH
        tl.store(share + head + column, dw, mask=whole)
        tl.store(share + at_ends, dw_ends, mask=exist)
