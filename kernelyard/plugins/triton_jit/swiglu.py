"""swiglu in Triton: y = a / (1 + exp(-a)) * b in float32, from two tensors or from the two halves of packed rows.

Bytes: a and b once, y once. 5 flops, one exponential and one quotient an element: bound by memory everywhere but on a few rows.

tile        a program takes (rows_per_program, block) elements; where a, b and y are all contiguous they are one long row of blocks, and
            no width is odd any more: (1000, 4095) is read 16 bytes at a time.
persistent  a fixed grid, each program takes every grid-th tile; loads run ahead by num_stages.

A full tile carries no mask: Triton vectorises a mask only as far as the width is divisible. In place: y may be a or b, since a program
stores the elements that it read and no others. Column offsets of one long row are 64-bit where it passes 2^31.
"""

# A Triton function is typed by its compiler, not by mypy.
# mypy: disable-error-code="untyped-decorator, no-untyped-def"

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from kernelyard.plugins.triton_jit.glu_tiles import GluView, corner, glu_view, grid, tile_constants
from kernelyard.plugins.triton_jit.launch import sm_count
from kernelyard.plugins.triton_jit.overlap import begin, overlaps
from kernelyard.registry.backend import TritonLaunch
from kernelyard.registry.spec import Config, Workload


@triton.jit
def gated(a, b):
    """silu(a) * b. For a below -88.7 exp(-a) is inf and the result 0, as in torch; silu(a) is at most 2.6e-37 there."""
    return a / (1.0 + tl.exp(-a)) * b


@triton.jit
def _tile(
    y_ptr, a_ptr, b_ptr, tile, rows, cols, a_stride, b_stride,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, WIDE: tl.constexpr, LOAD: tl.constexpr, STORE: tl.constexpr,
):  # fmt: skip
    """One tile; its mask only where rows or columns end inside it."""
    first_row, first = corner(tile, cols, ROWS, BLOCK, WIDE)
    row = (first_row + tl.arange(0, ROWS))[:, None]
    wide = row.to(tl.int64)
    column = first + tl.arange(0, BLOCK)[None, :]
    a_at, b_at, y_at = a_ptr + wide * a_stride + column, b_ptr + wide * b_stride + column, y_ptr + wide * cols + column
    if (first_row + ROWS <= rows) & (first + BLOCK <= cols):
        a = tl.load(a_at, eviction_policy=LOAD).to(tl.float32)
        b = tl.load(b_at, eviction_policy=LOAD).to(tl.float32)
        tl.store(y_at, gated(a, b).to(y_ptr.dtype.element_ty), eviction_policy=STORE)
    else:
        inside = (row < rows) & (column < cols)
        a = tl.load(a_at, mask=inside, other=0.0, eviction_policy=LOAD).to(tl.float32)
        b = tl.load(b_at, mask=inside, other=0.0, eviction_policy=LOAD).to(tl.float32)
        tl.store(y_at, gated(a, b).to(y_ptr.dtype.element_ty), mask=inside, eviction_policy=STORE)


@triton.jit(do_not_specialize=["rows"])
def tile_kernel(
    y_ptr, a_ptr, b_ptr, rows, cols_units, a_units, b_units,
    UNIT: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, PACKED: tl.constexpr, WIDE: tl.constexpr,
    LOAD: tl.constexpr, STORE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One tile a program."""
    begin(PDL)
    cols = cols_units * UNIT
    if PACKED:
        b_ptr = a_ptr + cols
    _tile(y_ptr, a_ptr, b_ptr, tl.program_id(0), rows, cols, a_units * UNIT, b_units * UNIT, ROWS, BLOCK, WIDE, LOAD, STORE)


@triton.jit(do_not_specialize=["rows", "tiles"])
def persistent_kernel(
    y_ptr, a_ptr, b_ptr, rows, tiles, cols_units, a_units, b_units,
    UNIT: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, PACKED: tl.constexpr, WIDE: tl.constexpr,
    LOAD: tl.constexpr, STORE: tl.constexpr, PDL: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Every grid-th tile. All tiles are masked: a branch in the loop would keep loads from running ahead."""
    begin(PDL)
    cols = cols_units * UNIT
    if PACKED:
        b_ptr = a_ptr + cols
    if PACKED:
        b_ptr = a_ptr + cols
    for tile in tl.range(tl.program_id(0), tiles, tl.num_programs(0), num_stages=STAGES):
        first_row, first = corner(tile, cols, ROWS, BLOCK, WIDE)
        row = (first_row + tl.arange(0, ROWS))[:, None]
        wide = row.to(tl.int64)
        column = first + tl.arange(0, BLOCK)[None, :]
        inside = (row < rows) & (column < cols)
        a = tl.load(a_ptr + wide * (a_units * UNIT) + column, mask=inside, other=0.0, eviction_policy=LOAD).to(tl.float32)
        b = tl.load(b_ptr + wide * (b_units * UNIT) + column, mask=inside, other=0.0, eviction_policy=LOAD).to(tl.float32)
        tl.store(y_ptr + wide * cols + column, gated(a, b).to(y_ptr.dtype.element_ty), mask=inside, eviction_policy=STORE)


def tile(workload: Workload, config: Config) -> TritonLaunch:
    """One program a tile."""
    view = glu_view(workload)
    return _launch(tile_kernel, workload, config, view, grid(view, config), (view.rows,), {})


def persistent(workload: Workload, config: Config) -> TritonLaunch:
    """`programs_per_sm` programs on each multiprocessor, or one a tile where there are fewer."""
    view = glu_view(workload)
    tiles = grid(view, config)
    programs = min(tiles, sm_count(workload) * int(config["programs_per_sm"]))
    return _launch(persistent_kernel, workload, config, view, programs, (view.rows, tiles), {"STAGES": int(config["num_stages"])})


def _launch(
    function: Any, workload: Workload, config: Config, view: GluView, programs: int, counts: tuple[int, ...], more: dict[str, Any]
) -> TritonLaunch:
    constants = {**tile_constants(workload, config, view), **more}
    sizes = (*counts, view.cols // view.unit, view.a_stride // view.unit, view.b_stride // view.unit)

    def arguments(outputs: tuple[Tensor, ...], a: Tensor, b: Tensor | None) -> tuple[Any, ...]:
        return outputs[0], a, b, *sizes

    return TritonLaunch(function, (programs, 1, 1), arguments, constants, num_warps=int(config["num_warps"]), pdl=overlaps(config))
