"""softmax of rows that start anywhere, in 16-byte accesses: `shifted`, for contiguous x of a width that 16 bytes do not divide.

Bytes, flops and rules for -inf, inf and NaN as in softmax; rows as in `shifted`: a program takes rows that start equally far from a
multiple of 16 bytes, their whole vectors as one tile and up to 14 elements at both ends as another, of an element a lane.
"""

# A Triton function is typed by its compiler, not by mypy.
# mypy: disable-error-code="untyped-decorator, no-untyped-def"

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from kernelyard.plugins.triton_jit.overlap import begin, overlaps
from kernelyard.plugins.triton_jit.shifted import constants, grid, rows_of_a_kind
from kernelyard.plugins.triton_jit.softmax import finite, reciprocal
from kernelyard.registry.backend import TritonLaunch
from kernelyard.registry.spec import Config, Workload


@triton.jit(do_not_specialize=["rows"])
def shifted_kernel(
    y_ptr, x_ptr, rows, cols,
    VECTOR: tl.constexpr, PERIOD: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
    LOAD: tl.constexpr, STORE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """A tile of rows of one kind in registers."""
    begin(PDL)
    _head, _body, start, aligned, column, inside, at_ends, exist = rows_of_a_kind(rows, cols, VECTOR, PERIOD, ROWS, COLS)
    x = tl.load(x_ptr + aligned + column, mask=inside, other=float("-inf"), eviction_policy=LOAD).to(tl.float32)
    x_ends = tl.load(x_ptr + start + at_ends, mask=exist, other=float("-inf")).to(tl.float32)
    shift = finite(tl.maximum(tl.max(x, 1, keep_dims=True), tl.max(x_ends, 1, keep_dims=True)))
    power, power_ends = tl.exp(x - shift), tl.exp(x_ends - shift)
    share = reciprocal(tl.sum(power, 1, keep_dims=True) + tl.sum(power_ends, 1, keep_dims=True))
    tl.store(y_ptr + aligned + column, (power * share).to(y_ptr.dtype.element_ty), mask=inside, eviction_policy=STORE)
    tl.store(y_ptr + start + at_ends, (power_ends * share).to(y_ptr.dtype.element_ty), mask=exist)


def shifted(workload: Workload, config: Config) -> TritonLaunch:
    """`rows_per_program` rows of one kind a program."""
    rows, cols = workload.dim("rows"), workload.dim("cols")

    def arguments(outputs: tuple[Tensor, ...], x: Tensor) -> tuple[Any, ...]:
        return outputs[0], x, rows, cols

    return TritonLaunch(
        shifted_kernel, grid(workload, config), arguments, constants(workload, config),
        num_warps=int(config["num_warps"]), pdl=overlaps(config),
    )  # fmt: skip
