"""rmsnorm of rows that start anywhere, in 16-byte accesses: `shifted`, for contiguous x of a width that 16 bytes do not divide.

Bytes and flops as in rmsnorm. A program takes rows of one kind, as in `shifted`.
Tile: (rows_per_program, cols) for the body, (rows_per_program, 16) for both ends. The weight is not aligned to the rows: it is
loaded an element a lane (coalesced, as a tile of its own shape, or Triton gives it the layout of x: 16 sectors a request), once a program.

Lost: vectors that reach into the neighbour's row and are masked afterwards (the last one reads past the tensor); eight copies of the
weight, one for each shift (a launch more); a tile of eight whole rows that starts aligned (eight masked sums over all of it).
"""

# A Triton function is typed by its compiler, not by mypy.
# mypy: disable-error-code="untyped-decorator, no-untyped-def"

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from kernelyard.plugins.triton_jit.overlap import begin, overlaps
from kernelyard.plugins.triton_jit.rmsnorm import scaled
from kernelyard.plugins.triton_jit.shifted import constants, grid, rows_of_a_kind, weights
from kernelyard.registry.backend import TritonLaunch
from kernelyard.registry.spec import Config, Workload


@triton.jit(do_not_specialize=["rows"])
def shifted_kernel(
    y_ptr, x_ptr, w_ptr, rows, cols, eps, offset,
    VECTOR: tl.constexpr, PERIOD: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
    HAS_WEIGHT: tl.constexpr, LLAMA: tl.constexpr, LOAD: tl.constexpr, STORE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """A tile of rows of one kind in registers."""
    begin(PDL)
    head, body, start, aligned, column, inside, at_ends, exist = rows_of_a_kind(rows, cols, VECTOR, PERIOD, ROWS, COLS)
    x = tl.load(x_ptr + aligned + column, mask=inside, other=0.0, eviction_policy=LOAD)
    x_ends = tl.load(x_ptr + start + at_ends, mask=exist, other=0.0)
    w, w_ends = x, x_ends
    if HAS_WEIGHT:
        w, w_ends = weights(w_ptr, head, body, at_ends, exist, COLS)
    x = x.to(tl.float32)
    x_ends = x_ends.to(tl.float32)
    squares = tl.sum(x * x, 1, keep_dims=True) + tl.sum(x_ends * x_ends, 1, keep_dims=True)
    rstd = tl.rsqrt(squares / cols + eps)
    y = scaled(x, rstd, w, offset, HAS_WEIGHT, LLAMA, y_ptr.dtype.element_ty)
    y_ends = scaled(x_ends, rstd, w_ends, offset, HAS_WEIGHT, LLAMA, y_ptr.dtype.element_ty)
    tl.store(y_ptr + aligned + column, y, mask=inside, eviction_policy=STORE)
    tl.store(y_ptr + start + at_ends, y_ends, mask=exist)


def shifted(workload: Workload, config: Config) -> TritonLaunch:
    """`rows_per_program` rows of one kind a program."""
    rows, cols = workload.dim("rows"), workload.dim("cols")
    weighing = {"HAS_WEIGHT": workload.has("w"), "LLAMA": workload.static("casting") == "llama"}

    def arguments(outputs: tuple[Tensor, ...], x: Tensor, w: Tensor | None, eps: float, offset: float, casting: str) -> tuple[Any, ...]:
        return outputs[0], x, w, rows, cols, float(eps), float(offset)

    fixed = {**constants(workload, config), **weighing}
    return TritonLaunch(
        shifted_kernel, grid(workload, config), arguments, fixed, num_warps=int(config["num_warps"]), pdl=overlaps(config)
    )
