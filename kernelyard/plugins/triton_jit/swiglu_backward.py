"""swiglu_backward in Triton, with s = 1 / (1 + exp(-a)): da = dy b s (1 + a (1 - s)), db = dy a s, in float32, each rounded once.

Bytes: dy, a and b once, da and db once. 10 flops, one exponential and one quotient an element: bound by memory.

tile        as in swiglu: a program takes (rows_per_program, block) elements, of one long row where all tensors are contiguous; packed
            factors have packed gradients.
persistent  a fixed grid, each program takes every grid-th tile; loads run ahead by num_stages.
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
def gradients(dy, a, b):
    """(da, db). Where exp(-a) is inf, s is 0 and so are both, for finite a."""
    s = 1.0 / (1.0 + tl.exp(-a))
    return dy * b * s * (1.0 + a * (1.0 - s)), dy * a * s


@triton.jit(do_not_specialize=["rows"])
def tile_kernel(
    da_ptr, db_ptr, dy_ptr, a_ptr, b_ptr, rows, cols_units, dy_units, a_units, b_units,
    UNIT: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, PACKED: tl.constexpr, WIDE: tl.constexpr,
    LOAD: tl.constexpr, STORE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One tile; its mask only where rows or columns end inside it."""
    begin(PDL)
    cols = cols_units * UNIT
    gap = cols
    if PACKED:
        gap, b_ptr, db_ptr = 2 * cols, a_ptr + cols, da_ptr + cols
    first_row, first = corner(tl.program_id(0), cols, ROWS, BLOCK, WIDE)
    row = (first_row + tl.arange(0, ROWS))[:, None]
    wide = row.to(tl.int64)
    column = first + tl.arange(0, BLOCK)[None, :]
    dy_at, out = dy_ptr + wide * (dy_units * UNIT) + column, wide * gap + column
    a_at, b_at = a_ptr + wide * (a_units * UNIT) + column, b_ptr + wide * (b_units * UNIT) + column
    DTYPE: tl.constexpr = da_ptr.dtype.element_ty
    if (first_row + ROWS <= rows) & (first + BLOCK <= cols):
        dy = tl.load(dy_at, eviction_policy=LOAD).to(tl.float32)
        a = tl.load(a_at, eviction_policy=LOAD).to(tl.float32)
        b = tl.load(b_at, eviction_policy=LOAD).to(tl.float32)
        da, db = gradients(dy, a, b)
        tl.store(da_ptr + out, da.to(DTYPE), eviction_policy=STORE)
        tl.store(db_ptr + out, db.to(DTYPE), eviction_policy=STORE)
    else:
        inside = (row < rows) & (column < cols)
        dy = tl.load(dy_at, mask=inside, other=0.0, eviction_policy=LOAD).to(tl.float32)
        a = tl.load(a_at, mask=inside, other=0.0, eviction_policy=LOAD).to(tl.float32)
        b = tl.load(b_at, mask=inside, other=0.0, eviction_policy=LOAD).to(tl.float32)
        da, db = gradients(dy, a, b)
        tl.store(da_ptr + out, da.to(DTYPE), mask=inside, eviction_policy=STORE)
        tl.store(db_ptr + out, db.to(DTYPE), mask=inside, eviction_policy=STORE)


@triton.jit(do_not_specialize=["rows", "tiles"])
def persistent_kernel(
    da_ptr, db_ptr, dy_ptr, a_ptr, b_ptr, rows, tiles, cols_units, dy_units, a_units, b_units,
    UNIT: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, PACKED: tl.constexpr, WIDE: tl.constexpr,
    LOAD: tl.constexpr, STORE: tl.constexpr, PDL: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Every grid-th tile. All tiles are masked: a branch in the loop would keep loads from running ahead."""
    begin(PDL)
    cols = cols_units * UNIT
    gap = cols
    if PACKED:
        gap, b_ptr, db_ptr = 2 * cols, a_ptr + cols, da_ptr + cols
    DTYPE: tl.constexpr = da_ptr.dtype.element_ty
    for tile in tl.range(tl.program_id(0), tiles, tl.num_programs(0), num_stages=STAGES):
        first_row, first = corner(tile, cols, ROWS, BLOCK, WIDE)
        row = (first_row + tl.arange(0, ROWS))[:, None]
        wide = row.to(tl.int64)
        column = first + tl.arange(0, BLOCK)[None, :]
        inside = (row < rows) & (column < cols)
        dy = tl.load(dy_ptr + wide * (dy_units * UNIT) + column, mask=inside, other=0.0, eviction_policy=LOAD).to(tl.float32)
        a = tl.load(a_ptr + wide * (a_units * UNIT) + column, mask=inside, other=0.0, eviction_policy=LOAD).to(tl.float32)
        b = tl.load(b_ptr + wide * (b_units * UNIT) + column, mask=inside, other=0.0, eviction_policy=LOAD).to(tl.float32)
        da, db = gradients(dy, a, b)
        tl.store(da_ptr + wide * gap + column, da.to(DTYPE), mask=inside, eviction_policy=STORE)
        tl.store(db_ptr + wide * gap + column, db.to(DTYPE), mask=inside, eviction_policy=STORE)


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
    sizes = (*counts, *(size // view.unit for size in (view.cols, view.dy_stride, view.a_stride, view.b_stride)))

    def arguments(outputs: tuple[Tensor, ...], dy: Tensor, a: Tensor, b: Tensor | None) -> tuple[Any, ...]:
        return outputs[0], outputs[1], dy, a, b, *sizes

    return TritonLaunch(function, (programs, 1, 1), arguments, constants, num_warps=int(config["num_warps"]), pdl=overlaps(config))
