"""softmax of wide rows in half precision: `packed`, one pass with the row in registers as it was loaded, two elements in each.

Bytes as in softmax; 7 flops and 2 exponentials an element. A row of 32768 columns as float32 takes half of a multiprocessor's registers,
and so one program at a time loads, waits for two reductions and writes. As pairs it takes a quarter, and programs overlap.

A compiler undoes this: it converts once and keeps the result, which is cheaper than to convert three times. So each use reads the pairs
through an exclusive or with a zero that only run time knows, and that depends on what has to come first (the maximum, then the sum).
Compiled for sm_90, one row of 32768 columns: 32 warps 32 registers, 16 warps 64, 8 warps 122: two programs on a multiprocessor each;
`row` has 49, 92 and spills. H200, 2048 rows of 32768 bfloat16: 70.4 us, persistent 74.1, cuda.cluster 77.1, sweep 80.3, plain torch 126.
"""

# A Triton function is typed by its compiler, not by mypy.
# mypy: disable-error-code="untyped-decorator, no-untyped-def"

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from kernelyard.plugins.triton_jit.defaults import block_cols
from kernelyard.plugins.triton_jit.launch import policies, row_view
from kernelyard.plugins.triton_jit.overlap import begin, compiling, overlaps
from kernelyard.plugins.triton_jit.softmax import finite, full, loaded, reciprocal, stored
from kernelyard.registry.backend import TritonLaunch
from kernelyard.registry.spec import Config, Workload


@triton.jit
def again(x, after, zero, OPAQUE: tl.constexpr):
    """The same x, of which no compiler knows that it is; not before `after` is known."""
    if OPAQUE:
        nothing = (after.to(tl.int32, bitcast=True) & zero).to(tl.int16).to(x.dtype, bitcast=True)
        nothing = tl.broadcast_to(nothing, x.shape)
        x = tl.inline_asm_elementwise("xor.b32 $0, $1, $2;", "=r,r,r", [x, nothing], dtype=x.dtype, is_pure=True, pack=2)
    return x


@triton.jit(do_not_specialize=["rows", "zero"])
def packed_kernel(
    y_ptr, x_ptr, rows, cols_units, stride_units, zero,
    UNIT: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, FULL: tl.constexpr, OPAQUE: tl.constexpr,
    LOAD: tl.constexpr, STORE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """A tile of whole rows in registers."""
    begin(PDL)
    cols = cols_units * UNIT
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS))[:, None]
    column = tl.arange(0, COLS)[None, :]
    inside = (row < rows) & (column < cols)
    wide = row.to(tl.int64)
    x = loaded(x_ptr + wide * (stride_units * UNIT) + column, inside, FULL, LOAD)
    shift = finite(tl.max(x.to(tl.float32), 1, keep_dims=True))
    x = again(x, shift, zero, OPAQUE)
    total = tl.sum(tl.exp(x.to(tl.float32) - shift), 1, keep_dims=True)
    x = again(x, total, zero, OPAQUE)
    y = tl.exp(x.to(tl.float32) - shift) * reciprocal(total)
    stored(y_ptr + wide * cols + column, y, inside, FULL, STORE)


def packed(workload: Workload, config: Config) -> TritonLaunch:
    """One program for every `rows_per_program` rows."""
    view, together = row_view(workload), int(config["rows_per_program"])
    sizes = (view.rows, view.cols_units, view.stride_units)
    load, store, _ = policies(config)
    constants = {
        "UNIT": view.unit, "ROWS": together, "COLS": block_cols(workload), "FULL": full(workload, config), "OPAQUE": compiling(),
        "LOAD": load, "STORE": store, "PDL": overlaps(config),
    }  # fmt: skip

    def arguments(outputs: tuple[Tensor, ...], x: Tensor) -> tuple[Any, ...]:
        return outputs[0], x, *sizes, 0

    grid = (triton.cdiv(view.rows, together), 1, 1)
    return TritonLaunch(packed_kernel, grid, arguments, constants, num_warps=int(config["num_warps"]), pdl=overlaps(config))
