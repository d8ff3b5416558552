"""The gradients of rmsnorm and add_rmsnorm in Triton: dx and dw from dy and x; rstd is computed again from x, which is read anyway.

    g = dy (w + offset), n = x rstd:   dx = rstd (g - n mean(g n)) (+ dr),   dw = sum over rows of dy n

Bytes: x and dy once, dx once, and partial sums of dw; 12 flops an element: bound by memory. float32 inside, one rounding.

persistent  a fixed grid, each program takes every grid-th tile of whole rows and keeps the weight and its share of dw in registers
            (float32); the next tiles are on their way through shared memory (`num_stages`). Then its share goes to a row of the workspace,
            or to dw where one program has all rows.
split       for rows that registers can't hold beside dw: a sweep over whole rows for two sums a row (rstd, mean(g n)), then programs
            that own a block of columns and a slice of the rows, dw in registers. x and dy are read twice.
total       last of both: one program a block of columns adds the workspace's rows in their order. It is on the GPU before the others
            end (programmatic dependent launch), so that no time passes between them.

Deterministic: the grid fixes which rows a program sums, `total` adds in order; no atomics. Why not "the last program adds":
that one multiprocessor reads all partial rows alone (132 of 4096 columns: 2.1 MB), and its counter must be zero at each call, one
for each stream: a memset more, or state that two streams share.

Lost: dw summed over rows in memory for wide rows (two sweeps, 1994 GB/s at 2048x32768 on one H200; whole rows in registers: 625);
atomic additions to dw (an order that differs from run to run); one partial row a tile instead of a program (as many bytes as dx).
"""

# A Triton function is typed by its compiler, not by mypy.
# mypy: disable-error-code="untyped-decorator, no-untyped-def"

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def two_sums(a, b, JOINT: tl.constexpr):
    """Sums of both over columns, (ROWS, 1) each; `JOINT` as one reduction: a barrier less."""
    if JOINT:
        first, second = tl.split(tl.sum(tl.join(a, b), 1))
        return first[:, None], second[:, None]
    return tl.sum(a, 1, keep_dims=True), tl.sum(b, 1, keep_dims=True)


@triton.jit(do_not_specialize=["rows"])
def persistent_kernel(
    dx_ptr, share_ptr, dy_ptr, x_ptr, dr_ptr, w_ptr, rows, cols_units, dy_units, x_units, dr_units, eps, offset,
    UNIT: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, STAGES: tl.constexpr, FOLD: tl.constexpr,
    ALONE: tl.constexpr, JOINT: tl.constexpr, HAS_WEIGHT: tl.constexpr, HAS_DR: tl.constexpr,
    LOAD: tl.constexpr, STORE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Every grid-th tile of whole rows; `FOLD` adds its rows at once, else the tile is added and its rows at the end.

    A program that is `ALONE` has all of dw as its share.
    """
    if PDL:
        gdc_launch_dependents()
    cols = cols_units * UNIT
    column = tl.arange(0, COLS)[None, :]
    gain = 1.0
    if HAS_WEIGHT:
        gain = tl.load(w_ptr + column, mask=column < cols, other=0.0).to(tl.float32) + offset
    dw = tl.zeros((1 if FOLD else ROWS, COLS), tl.float32)
    for tile in tl.range(tl.program_id(0), tl.cdiv(rows, ROWS), tl.num_programs(0), num_stages=STAGES):
        row = (tile * ROWS + tl.arange(0, ROWS))[:, None]
        wide = row.to(tl.int64)
        inside = (row < rows) & (column < cols)
        x = tl.load(x_ptr + wide * (x_units * UNIT) + column, mask=inside, other=0.0, eviction_policy=LOAD).to(tl.float32)
        dy = tl.load(dy_ptr + wide * (dy_units * UNIT) + column, mask=inside, other=0.0, eviction_policy=LOAD).to(tl.float32)
        g = dy * gain
        squares, products = two_sums(x * x, g * x, JOINT)
        rstd = tl.rsqrt(squares / cols + eps)
        n = x * rstd
        dx = rstd * (g - n * (products * rstd / cols))
        if HAS_DR:
            dx += tl.load(dr_ptr + wide * (dr_units * UNIT) + column, mask=inside, other=0.0, eviction_policy=LOAD).to(tl.float32)
        tl.store(dx_ptr + wide * cols + column, dx.to(dx_ptr.dtype.element_ty), mask=inside, eviction_policy=STORE)
        if HAS_WEIGHT:
            dw += tl.sum(dy * n, 0, keep_dims=True) if FOLD else dy * n
    if HAS_WEIGHT:
        place = tl.program_id(0).to(tl.int64) * WIDTH + column
        tl.store(share_ptr + place, tl.sum(dw, 0, keep_dims=True).to(share_ptr.dtype.element_ty), mask=column < (cols if ALONE else WIDTH))


@triton.jit(do_not_specialize=["rows"])
def sums_kernel(
    sums_ptr, dy_ptr, x_ptr, w_ptr, rows, cols_units, dy_units, x_units, eps, offset,
    UNIT: tl.constexpr, BLOCK: tl.constexpr, HAS_WEIGHT: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """rstd and rstd^2 mean(g x) of a row a program, block by block."""
    if PDL:
        gdc_launch_dependents()
    cols = cols_units * UNIT
    row = tl.program_id(0).to(tl.int64)
    squares = tl.zeros((BLOCK,), tl.float32)
    products = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, cols, BLOCK):
        column = start + tl.arange(0, BLOCK)
        inside = column < cols
        x = tl.load(x_ptr + row * (x_units * UNIT) + column, mask=inside, other=0.0).to(tl.float32)
        g = tl.load(dy_ptr + row * (dy_units * UNIT) + column, mask=inside, other=0.0).to(tl.float32)
        if HAS_WEIGHT:
            g *= tl.load(w_ptr + column, mask=inside, other=0.0).to(tl.float32) + offset
        squares += x * x
        products += g * x
    rstd = tl.rsqrt(tl.sum(squares) / cols + eps)
    tl.store(sums_ptr + 2 * row, rstd)
    tl.store(sums_ptr + 2 * row + 1, tl.sum(products) * rstd / cols)


@triton.jit(do_not_specialize=["rows", "slice_rows"])
def columns_kernel(
    dx_ptr, share_ptr, sums_ptr, dy_ptr, x_ptr, dr_ptr, w_ptr,
    rows, slice_rows, cols_units, dy_units, x_units, dr_units, offset,
    UNIT: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr,
    HAS_WEIGHT: tl.constexpr, HAS_DR: tl.constexpr, LOAD: tl.constexpr, STORE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """A block of columns of a slice of rows, from the last row to the first: the last ones are still in L2."""
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    cols = cols_units * UNIT
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)[None, :]
    gain = 1.0
    if HAS_WEIGHT:
        gain = tl.load(w_ptr + column, mask=column < cols, other=0.0).to(tl.float32) + offset
    dw = tl.zeros((1, BLOCK), tl.float32)
    for tile in tl.range(0, tl.cdiv(slice_rows, ROWS), num_stages=STAGES):
        row = (rows - 1 - (tile * tl.num_programs(1) + tl.program_id(1)) * ROWS - tl.arange(0, ROWS))[:, None]
        wide = row.to(tl.int64)
        inside = (row >= 0) & (column < cols)
        rstd = tl.load(sums_ptr + 2 * wide, mask=row >= 0, other=0.0)
        mean = tl.load(sums_ptr + 2 * wide + 1, mask=row >= 0, other=0.0)
        x = tl.load(x_ptr + wide * (x_units * UNIT) + column, mask=inside, other=0.0, eviction_policy=LOAD).to(tl.float32)
        dy = tl.load(dy_ptr + wide * (dy_units * UNIT) + column, mask=inside, other=0.0, eviction_policy=LOAD).to(tl.float32)
        n = x * rstd
        dx = rstd * (dy * gain - n * mean)
        if HAS_DR:
            dx += tl.load(dr_ptr + wide * (dr_units * UNIT) + column, mask=inside, other=0.0, eviction_policy=LOAD).to(tl.float32)
        tl.store(dx_ptr + wide * cols + column, dx.to(dx_ptr.dtype.element_ty), mask=inside, eviction_policy=STORE)
        dw += tl.sum(dy * n, 0, keep_dims=True)
    if HAS_WEIGHT:
        tl.store(share_ptr + tl.program_id(1).to(tl.int64) * WIDTH + column, dw, mask=column < WIDTH)


@triton.jit(do_not_specialize=["shares"])
def total_kernel(
    dw_ptr, share_ptr, shares, cols_units,
    UNIT: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """dw of a block of columns: the workspace's rows, `ROWS` at a time."""
    if PDL:
        gdc_wait()
    cols = cols_units * UNIT
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)[None, :]
    total = tl.zeros((ROWS, BLOCK), tl.float32)
    for start in range(0, shares, ROWS):
        share = (start + tl.arange(0, ROWS))[:, None]
        total += tl.load(share_ptr + share.to(tl.int64) * WIDTH + column, mask=(share < shares) & (column < cols), other=0.0)
    dw = tl.sum(total, 0, keep_dims=True)
    tl.store(dw_ptr + column, dw.to(dw_ptr.dtype.element_ty), mask=column < cols)
