"""rmsnorm in Triton, one pass: the function that kernelyard and triton.autotune are both given."""

# A Triton function is typed by its compiler, not by mypy.
# mypy: disable-error-code="untyped-decorator, no-untyped-def"

import triton
import triton.language as tl


@triton.jit
def normalise(
    y_ptr, x_ptr, w_ptr, rows, eps, offset,
    COLS: tl.constexpr, ROWS: tl.constexpr, HINT: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """ROWS whole rows of COLS columns in registers; HINT is the eviction policy of x and y, EARLY loads the weight beside x."""
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS))[:, None]
    column = tl.arange(0, COLS)[None, :]
    inside = row < rows
    place = row.to(tl.int64) * COLS + column
    x = tl.load(x_ptr + place, mask=inside, other=0.0, eviction_policy=HINT)
    w = x
    if EARLY:
        w = tl.load(w_ptr + column)
    x = x.to(tl.float32)
    rstd = tl.rsqrt(tl.sum(x * x, 1, keep_dims=True) / COLS + eps)
    if not EARLY:
        w = tl.load(w_ptr + column)
    y = x * rstd * (w.to(tl.float32) + offset)
    tl.store(y_ptr + place, y.to(y_ptr.dtype.element_ty), mask=inside, eviction_policy=HINT)
