"""add_rmsnorm of rows that start anywhere, in 16-byte accesses: `shifted`, for contiguous x and residual of a width that 16 bytes do not
divide.

Bytes, flops and rounding as in add_rmsnorm: x and residual once, y and r once, bound by memory. Rows as in `shifted`: a program takes
rows that start equally far from a multiple of 16 bytes, in all four tensors alike, their whole vectors as one tile and up to 14 elements at
both ends as another, of an element a lane; the weight is loaded an element a lane too, once a program.

In place: outputs may be x and residual. No other program reads these rows, but several threads may load the same elements, where a tile has
fewer than there are threads or Triton holds the ends in two layouts (3.6), and the sum does not always make warps wait for each other. So
they do before the first store.
"""

# A Triton function is typed by its compiler, not by mypy.
# mypy: disable-error-code="untyped-decorator, no-untyped-def"

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from kernelyard.plugins.triton_jit.add_rmsnorm import added
from kernelyard.plugins.triton_jit.overlap import begin, overlaps
from kernelyard.plugins.triton_jit.rmsnorm import scaled
from kernelyard.plugins.triton_jit.shifted import constants, grid, rows_of_a_kind, weights
from kernelyard.registry.backend import TritonLaunch
from kernelyard.registry.spec import Config, Workload


@triton.jit(do_not_specialize=["rows"])
def shifted_kernel(
    y_ptr, r_ptr, x_ptr, residual_ptr, w_ptr, rows, cols, eps, offset,
    VECTOR: tl.constexpr, PERIOD: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
    HAS_WEIGHT: tl.constexpr, LLAMA: tl.constexpr, LOAD: tl.constexpr, STORE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """A tile of rows of one kind in registers."""
    begin(PDL)
    head, body, start, aligned, column, inside, at_ends, exist = rows_of_a_kind(rows, cols, VECTOR, PERIOD, ROWS, COLS)
    DTYPE: tl.constexpr = y_ptr.dtype.element_ty
    r = added(x_ptr + aligned, residual_ptr + aligned, column, inside, LOAD, DTYPE)
    r_ends = added(x_ptr + start, residual_ptr + start, at_ends, exist, "", DTYPE)
    w, w_ends = r, r_ends
    if HAS_WEIGHT:
        w, w_ends = weights(w_ptr, head, body, at_ends, exist, COLS)
    squares = tl.sum(r * r, 1, keep_dims=True) + tl.sum(r_ends * r_ends, 1, keep_dims=True)
    rstd = tl.rsqrt(squares / cols + eps)
    tl.debug_barrier()
    tl.store(r_ptr + aligned + column, r.to(DTYPE), mask=inside, eviction_policy=STORE)
    tl.store(r_ptr + start + at_ends, r_ends.to(DTYPE), mask=exist)
    y = scaled(r, rstd, w, offset, HAS_WEIGHT, LLAMA, DTYPE)
    y_ends = scaled(r_ends, rstd, w_ends, offset, HAS_WEIGHT, LLAMA, DTYPE)
    tl.store(y_ptr + aligned + column, y, mask=inside, eviction_policy=STORE)
    tl.store(y_ptr + start + at_ends, y_ends, mask=exist)


def shifted(workload: Workload, config: Config) -> TritonLaunch:
    """`rows_per_program` rows of one kind a program."""
    rows, cols = workload.dim("rows"), workload.dim("cols")
    weighing = {"HAS_WEIGHT": workload.has("w"), "LLAMA": workload.static("casting") == "llama"}

    def arguments(
        outputs: tuple[Tensor, ...], x: Tensor, residual: Tensor, w: Tensor | None, eps: float, offset: float, casting: str
    ) -> tuple[Any, ...]:
        return outputs[0], outputs[1], x, residual, w, rows, cols, float(eps), float(offset)

    fixed = {**constants(workload, config), **weighing}
    return TritonLaunch(
        shifted_kernel, grid(workload, config), arguments, fixed, num_warps=int(config["num_warps"]), pdl=overlaps(config)
    )
