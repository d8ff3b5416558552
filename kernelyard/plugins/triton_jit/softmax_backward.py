"""softmax_backward in Triton: dx = y * (dy - sum(dy * y)), sums in float32.

Bytes: dy and y once, dx once. 4 flops an element: bound by memory everywhere but on a few rows, where latency is the time.

row         a program holds (rows_per_program, cols) of dy and of y in registers: read, reduce, write.
persistent  a fixed grid, each program takes every grid-th tile; loads run ahead by num_stages, through shared memory.
sweep       block by block, twice: the sum of products, then dx, with dy and y out of L2.
shifted     rows that start anywhere, 16 bytes at a time: see `shifted`.
"""

# A Triton function is typed by its compiler, not by mypy.
# mypy: disable-error-code="untyped-decorator, no-untyped-def"

import math
from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from kernelyard.plugins.triton_jit.defaults import block_cols
from kernelyard.plugins.triton_jit.launch import policies, row_stride, sm_count, steps
from kernelyard.plugins.triton_jit.overlap import begin, overlaps
from kernelyard.plugins.triton_jit.shifted import constants, grid, rows_of_a_kind
from kernelyard.registry.backend import TritonLaunch
from kernelyard.registry.spec import Config, Workload


@triton.jit
def loaded(row_ptr, column, inside, POLICY: tl.constexpr):
    """A tile as float32, zeros where there is none."""
    return tl.load(row_ptr + column, mask=inside, other=0.0, eviction_policy=POLICY).to(tl.float32)


@triton.jit(do_not_specialize=["rows"])
def row_kernel(
    dx_ptr, dy_ptr, y_ptr, rows, cols_units, dy_units, y_units,
    UNIT: tl.constexpr, ROWS: tl.constexpr, LOAD: tl.constexpr, STORE: tl.constexpr, PDL: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    """A tile of whole rows in registers."""
    begin(PDL)
    cols = cols_units * UNIT
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS))[:, None]
    wide = row.to(tl.int64)
    column = tl.arange(0, COLS)[None, :]
    inside = (row < rows) & (column < cols)
    dy = loaded(dy_ptr + wide * (dy_units * UNIT), column, inside, LOAD)
    y = loaded(y_ptr + wide * (y_units * UNIT), column, inside, LOAD)
    dx = y * (dy - tl.sum(dy * y, 1, keep_dims=True))
    tl.store(dx_ptr + wide * cols + column, dx.to(dx_ptr.dtype.element_ty), mask=inside, eviction_policy=STORE)


@triton.jit(do_not_specialize=["rows"])
def persistent_kernel(
    dx_ptr, dy_ptr, y_ptr, rows, cols_units, dy_units, y_units,
    UNIT: tl.constexpr, ROWS: tl.constexpr, LOAD: tl.constexpr, STORE: tl.constexpr, PDL: tl.constexpr, COLS: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """Every grid-th tile of whole rows."""
    begin(PDL)
    cols = cols_units * UNIT
    column = tl.arange(0, COLS)[None, :]
    for tile in tl.range(tl.program_id(0), tl.cdiv(rows, ROWS), tl.num_programs(0), num_stages=STAGES):
        row = (tile * ROWS + tl.arange(0, ROWS))[:, None]
        wide = row.to(tl.int64)
        inside = (row < rows) & (column < cols)
        dy = loaded(dy_ptr + wide * (dy_units * UNIT), column, inside, LOAD)
        y = loaded(y_ptr + wide * (y_units * UNIT), column, inside, LOAD)
        dx = y * (dy - tl.sum(dy * y, 1, keep_dims=True))
        tl.store(dx_ptr + wide * cols + column, dx.to(dx_ptr.dtype.element_ty), mask=inside, eviction_policy=STORE)


@triton.jit(do_not_specialize=["rows"])
def sweep_kernel(
    dx_ptr, dy_ptr, y_ptr, rows, cols_units, dy_units, y_units,
    UNIT: tl.constexpr, ROWS: tl.constexpr, LOAD: tl.constexpr, STORE: tl.constexpr, PDL: tl.constexpr,
    BLOCK: tl.constexpr, STEPS: tl.constexpr, KEEP: tl.constexpr,
):  # fmt: skip
    """Block by block over the rows of a program, twice."""
    begin(PDL)
    cols = STEPS * BLOCK if STEPS else cols_units * UNIT
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS))[:, None]
    wide = row.to(tl.int64)
    dy_row, y_row, dx_row = dy_ptr + wide * (dy_units * UNIT), y_ptr + wide * (y_units * UNIT), dx_ptr + wide * cols
    products = tl.zeros((ROWS, BLOCK), tl.float32)
    for start in range(0, cols, BLOCK):
        column = start + tl.arange(0, BLOCK)[None, :]
        inside = (row < rows) & (column < cols)
        products += loaded(dy_row, column, inside, KEEP) * loaded(y_row, column, inside, KEEP)
    total = tl.sum(products, 1, keep_dims=True)
    for start in range(0, cols, BLOCK):
        column = start + tl.arange(0, BLOCK)[None, :]
        inside = (row < rows) & (column < cols)
        dx = loaded(y_row, column, inside, LOAD) * (loaded(dy_row, column, inside, LOAD) - total)
        tl.store(dx_row + column, dx.to(dx_ptr.dtype.element_ty), mask=inside, eviction_policy=STORE)


@triton.jit(do_not_specialize=["rows"])
def shifted_kernel(
    dx_ptr, dy_ptr, y_ptr, rows, cols,
    VECTOR: tl.constexpr, PERIOD: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
    LOAD: tl.constexpr, STORE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """A tile of rows of one kind in registers."""
    begin(PDL)
    _head, _body, start, aligned, column, inside, at_ends, exist = rows_of_a_kind(rows, cols, VECTOR, PERIOD, ROWS, COLS)
    dy, y = loaded(dy_ptr + aligned, column, inside, LOAD), loaded(y_ptr + aligned, column, inside, LOAD)
    dy_ends, y_ends = loaded(dy_ptr + start, at_ends, exist, ""), loaded(y_ptr + start, at_ends, exist, "")
    total = tl.sum(dy * y, 1, keep_dims=True) + tl.sum(dy_ends * y_ends, 1, keep_dims=True)
    tl.store(dx_ptr + aligned + column, (y * (dy - total)).to(dx_ptr.dtype.element_ty), mask=inside, eviction_policy=STORE)
    tl.store(dx_ptr + start + at_ends, (y_ends * (dy_ends - total)).to(dx_ptr.dtype.element_ty), mask=exist)


def row(workload: Workload, config: Config) -> TritonLaunch:
    """One program for every `rows_per_program` rows."""
    return _launch(row_kernel, workload, config, _tiles(workload, config), {"COLS": block_cols(workload)})


def persistent(workload: Workload, config: Config) -> TritonLaunch:
    """`programs_per_sm` programs on each multiprocessor, or one a tile where there are fewer."""
    programs = min(_tiles(workload, config), sm_count(workload) * int(config["programs_per_sm"]))
    constants = {"COLS": block_cols(workload), "STAGES": int(config["num_stages"])}
    return _launch(persistent_kernel, workload, config, programs, constants)


def sweep(workload: Workload, config: Config) -> TritonLaunch:
    """One program for every `rows_per_program` rows, two sweeps each."""
    constants = {"BLOCK": int(config["block"]), "STEPS": steps(workload, config), "KEEP": policies(config)[2]}
    return _launch(sweep_kernel, workload, config, _tiles(workload, config), constants)


def shifted(workload: Workload, config: Config) -> TritonLaunch:
    """`rows_per_program` rows of one kind a program."""
    rows, cols = workload.dim("rows"), workload.dim("cols")

    def arguments(outputs: tuple[Tensor, ...], dy: Tensor, y: Tensor) -> tuple[Any, ...]:
        return outputs[0], dy, y, rows, cols

    return TritonLaunch(
        shifted_kernel, grid(workload, config), arguments, constants(workload, config),
        num_warps=int(config["num_warps"]), pdl=overlaps(config),
    )  # fmt: skip


def _tiles(workload: Workload, config: Config) -> int:
    return int(triton.cdiv(workload.dim("rows"), int(config["rows_per_program"])))


def _launch(function: Any, workload: Workload, config: Config, programs: int, constants: dict[str, Any]) -> TritonLaunch:
    cols, strides = workload.dim("cols"), (row_stride(workload, "dy"), row_stride(workload, "y"))
    unit = math.gcd(cols, *strides, 16)
    sizes = (workload.dim("rows"), cols // unit, *(stride // unit for stride in strides))
    load, store, _ = policies(config)
    shared = {"UNIT": unit, "ROWS": int(config["rows_per_program"]), "LOAD": load, "STORE": store, "PDL": overlaps(config)}

    def arguments(outputs: tuple[Tensor, ...], dy: Tensor, y: Tensor) -> tuple[Any, ...]:
        return outputs[0], dy, y, *sizes

    return TritonLaunch(
        function, (programs, 1, 1), arguments, {**constants, **shared}, num_warps=int(config["num_warps"]), pdl=overlaps(config)
    )
