"""The gradients of rmsnorm and add_rmsnorm for rows that start anywhere, in 16-byte accesses.

The algorithm is `norm_gradient`'s persistent one, the tiles are those of `rmsnorm_shifted`: a program takes rows of one kind, so that
the weight and its share of dw are shifted equally for all of them and stay in registers. The first and last few
elements of a row are loaded one by one, for the next tile while this one is worked on; a copy through shared memory takes 4 bytes at least.
"""

# A Triton function is typed by its compiler, not by mypy.
# mypy: disable-error-code="untyped-decorator, no-untyped-def"

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents

from kernelyard.plugins.triton_jit.norm_gradient import two_sums
from kernelyard.plugins.triton_jit.rmsnorm_shifted import ends, parts


@triton.jit
def load_ends(pointer, row, rows, cols, column, exist):
    """Head and tail of a tile of rows, float32."""
    place = row.to(tl.int64) * cols + column
    return tl.load(pointer + place, mask=exist & (row < rows), other=0.0).to(tl.float32)


@triton.jit(do_not_specialize=["rows"])
def shifted_kernel(
    dx_ptr, share_ptr, dy_ptr, x_ptr, dr_ptr, w_ptr, rows, cols, eps, offset,
    VECTOR: tl.constexpr, PERIOD: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, STAGES: tl.constexpr,
    FOLD: tl.constexpr, JOINT: tl.constexpr, HAS_WEIGHT: tl.constexpr, HAS_DR: tl.constexpr,
    LOAD: tl.constexpr, STORE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Every so many tiles of rows of one kind."""
    if PDL:
        gdc_launch_dependents()
    kind = tl.program_id(0) % PERIOD
    first = tl.program_id(0) // PERIOD
    step = tl.num_programs(0) // PERIOD
    head, body = parts(kind, cols, VECTOR)
    column = tl.arange(0, COLS)[None, :]
    flat = tl.arange(0, COLS)
    at_ends, exist = ends(head, body, cols, VECTOR)
    gain = 1.0
    gain_ends = 1.0
    if HAS_WEIGHT:
        gain = tl.load(w_ptr + head + flat, mask=flat < body, other=0.0)[None, :].to(tl.float32) + offset
        gain_ends = tl.load(w_ptr + at_ends, mask=exist, other=0.0).to(tl.float32) + offset
    dw = tl.zeros((1 if FOLD else ROWS, COLS), tl.float32)
    dw_ends = tl.zeros((ROWS, 2 * VECTOR), tl.float32)
    row = (kind + PERIOD * (first * ROWS + tl.arange(0, ROWS)))[:, None]
    x_next = load_ends(x_ptr, row, rows, cols, at_ends, exist)
    dy_next = load_ends(dy_ptr, row, rows, cols, at_ends, exist)
    for tile in tl.range(first, tl.cdiv(tl.cdiv(rows, PERIOD), ROWS), step, num_stages=STAGES):
        row = (kind + PERIOD * (tile * ROWS + tl.arange(0, ROWS)))[:, None]
        start = row.to(tl.int64) * cols
        aligned = (start + VECTOR - 1) // VECTOR * VECTOR
        inside = (row < rows) & (column < body)
        x = tl.load(x_ptr + aligned + column, mask=inside, other=0.0, eviction_policy=LOAD).to(tl.float32)
        dy = tl.load(dy_ptr + aligned + column, mask=inside, other=0.0, eviction_policy=LOAD).to(tl.float32)
        x_ends, dy_ends = x_next, dy_next
        x_next = load_ends(x_ptr, row + PERIOD * ROWS * step, rows, cols, at_ends, exist)
        dy_next = load_ends(dy_ptr, row + PERIOD * ROWS * step, rows, cols, at_ends, exist)
        g = dy * gain
        g_ends = dy_ends * gain_ends
        squares, products = two_sums(x * x, g * x, JOINT)
        squares += tl.sum(x_ends * x_ends, 1, keep_dims=True)
        products += tl.sum(g_ends * x_ends, 1, keep_dims=True)
        rstd = tl.rsqrt(squares / cols + eps)
        mean = products * rstd / cols
        n = x * rstd
        n_ends = x_ends * rstd
        dx = rstd * (g - n * mean)
        dx_ends = rstd * (g_ends - n_ends * mean)
        if HAS_DR:
            dx += tl.load(dr_ptr + aligned + column, mask=inside, other=0.0, eviction_policy=LOAD).to(tl.float32)
            dx_ends += load_ends(dr_ptr, row, rows, cols, at_ends, exist)
        tl.store(dx_ptr + aligned + column, dx.to(dx_ptr.dtype.element_ty), mask=inside, eviction_policy=STORE)
        tl.store(dx_ptr + start + at_ends, dx_ends.to(dx_ptr.dtype.element_ty), mask=exist & (row < rows))
        if HAS_WEIGHT:
            dw += tl.sum(dy * n, 0, keep_dims=True) if FOLD else dy * n
            dw_ends += dy_ends * n_ends
    if HAS_WEIGHT:
        share = share_ptr + tl.program_id(0).to(tl.int64) * WIDTH
        tl.store(share + head + column, tl.sum(dw, 0, keep_dims=True), mask=column < body)
        tl.store(share + at_ends, tl.sum(dw_ends, 0, keep_dims=True), mask=exist)
