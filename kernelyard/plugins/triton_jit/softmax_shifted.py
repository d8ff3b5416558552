"""softmax of rows that start anywhere, in 16-byte accesses: `shifted`, for contiguous x of a width that 16 bytes do not divide.

Bytes, flops and rules for -inf, inf and NaN as in softmax; rows as in rmsnorm_shifted: a program takes rows that start equally far from a
multiple of 16 bytes, their whole vectors as one tile and up to 14 elements at both ends as another, of an element a lane.
"""

# A Triton function is typed by its compiler, not by mypy.
# mypy: disable-error-code="untyped-decorator, no-untyped-def"

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from kernelyard.plugins.triton_jit.defaults import block_cols
from kernelyard.plugins.triton_jit.launch import policies
from kernelyard.plugins.triton_jit.overlap import begin, overlaps
from kernelyard.plugins.triton_jit.rmsnorm_shifted import ends, parts, period, vector
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
    kind = tl.program_id(0) % PERIOD
    row = (kind + PERIOD * (tl.program_id(0) // PERIOD * ROWS + tl.arange(0, ROWS)))[:, None]
    head, body = parts(kind, cols, VECTOR)
    start = row.to(tl.int64) * cols
    aligned = (start + VECTOR - 1) // VECTOR * VECTOR
    column = tl.arange(0, COLS)[None, :]
    inside = (row < rows) & (column < body)
    at_ends, exist = ends(head, body, cols, VECTOR)
    exist = exist & (row < rows)
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

    constants, grid = shifted_constants(workload, config), shifted_grid(workload, config)
    return TritonLaunch(shifted_kernel, grid, arguments, constants, num_warps=int(config["num_warps"]), pdl=overlaps(config))


def shifted_constants(workload: Workload, config: Config) -> dict[str, Any]:
    """What is fixed at compile time in a kernel of rows of one kind."""
    load, store, _ = policies(config)
    return {
        "VECTOR": vector(workload), "PERIOD": period(workload), "ROWS": int(config["rows_per_program"]), "COLS": block_cols(workload),
        "LOAD": load, "STORE": store, "PDL": overlaps(config),
    }  # fmt: skip


def shifted_grid(workload: Workload, config: Config) -> tuple[int, int, int]:
    """Programs of each kind, times kinds."""
    kinds = period(workload)
    return (kinds * triton.cdiv(triton.cdiv(workload.dim("rows"), kinds), int(config["rows_per_program"])), 1, 1)
