"""add_rmsnorm in Triton: r = x + residual in their dtype, y = rmsnorm(r as rounded); both written.

Bytes: x and residual once, y and r once; 5 flops an element: bound by memory everywhere but on a few rows, where latency is the time.

row         a program holds (rows_per_program, cols) in registers: read both, add, round, reduce, write both. r written before the
            reduction (`stored` at_once) loses 3% up to 4096 columns, 8% on one row (H200); at 32768 it makes 133 us (sweep 142).
sweep       block by block, twice: the sum of squares, then both outputs, x and residual out of L2; or r stored in the first and read again.
persistent  a fixed grid, each program takes every grid-th tile and keeps the weight; loads run ahead by num_stages.

In place: outputs may be x and residual. A program stores a row (sweep: a block of it) after it has read it for the last time, and no
other program reads it.
r that is read back may have been stored by another thread of the program: a barrier stands between the sweeps.
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
from kernelyard.plugins.triton_jit.rmsnorm import scaled
from kernelyard.registry.backend import TritonLaunch
from kernelyard.registry.spec import Config, Workload


@triton.jit
def added(x_row, residual_row, column, inside, POLICY: tl.constexpr, DTYPE: tl.constexpr):
    """x + residual, rounded once to their dtype, as float32."""
    x = tl.load(x_row + column, mask=inside, other=0.0, eviction_policy=POLICY).to(tl.float32)
    residual = tl.load(residual_row + column, mask=inside, other=0.0, eviction_policy=POLICY).to(tl.float32)
    return (x + residual).to(DTYPE).to(tl.float32)


@triton.jit(do_not_specialize=["rows"])
def row_kernel(
    y_ptr, r_ptr, x_ptr, residual_ptr, w_ptr, rows, cols_units, x_units, residual_units, eps, offset,
    UNIT: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, EARLY: tl.constexpr, AT_ONCE: tl.constexpr,
    HAS_WEIGHT: tl.constexpr, LLAMA: tl.constexpr, LOAD: tl.constexpr, STORE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """A tile of whole rows in registers."""
    begin(PDL)
    cols = cols_units * UNIT
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS))[:, None]
    column = tl.arange(0, COLS)[None, :]
    inside = (row < rows) & (column < cols)
    wide = row.to(tl.int64)
    DTYPE: tl.constexpr = y_ptr.dtype.element_ty
    r = added(x_ptr + wide * (x_units * UNIT), residual_ptr + wide * (residual_units * UNIT), column, inside, LOAD, DTYPE)
    if AT_ONCE:
        tl.store(r_ptr + wide * cols + column, r.to(DTYPE), mask=inside, eviction_policy=STORE)
    w = r
    if HAS_WEIGHT and EARLY:
        w = tl.load(w_ptr + column, mask=column < cols, other=0.0)
    rstd = tl.rsqrt(tl.sum(r * r, 1, keep_dims=True) / cols + eps)
    if HAS_WEIGHT and not EARLY:
        w = tl.load(w_ptr + column, mask=column < cols, other=0.0)
    if not AT_ONCE:
        tl.store(r_ptr + wide * cols + column, r.to(DTYPE), mask=inside, eviction_policy=STORE)
    tl.store(y_ptr + wide * cols + column, scaled(r, rstd, w, offset, HAS_WEIGHT, LLAMA, DTYPE), mask=inside, eviction_policy=STORE)


@triton.jit(do_not_specialize=["rows"])
def sweep_kernel(
    y_ptr, r_ptr, x_ptr, residual_ptr, w_ptr, rows, cols_units, x_units, residual_units, eps, offset,
    UNIT: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, STEPS: tl.constexpr, BACK: tl.constexpr,
    HAS_WEIGHT: tl.constexpr, LLAMA: tl.constexpr, KEEP: tl.constexpr, LOAD: tl.constexpr, STORE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Block by block over the rows of a program, twice."""
    begin(PDL)
    cols = STEPS * BLOCK if STEPS else cols_units * UNIT
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS))[:, None]
    wide = row.to(tl.int64)
    x_row = x_ptr + wide * (x_units * UNIT)
    residual_row = residual_ptr + wide * (residual_units * UNIT)
    DTYPE: tl.constexpr = y_ptr.dtype.element_ty
    r_row = r_ptr + wide * cols
    squares = tl.zeros((ROWS, BLOCK), tl.float32)
    for start in range(0, cols, BLOCK):
        column = start + tl.arange(0, BLOCK)[None, :]
        inside = (row < rows) & (column < cols)
        r = added(x_row, residual_row, column, inside, LOAD if BACK else KEEP, DTYPE)
        if BACK:
            tl.store(r_row + column, r.to(DTYPE), mask=inside, eviction_policy=KEEP)
        squares += r * r
    rstd = tl.rsqrt(tl.sum(squares, 1, keep_dims=True) / cols + eps)
    if BACK:
        tl.debug_barrier()
    for start in range(0, cols, BLOCK):
        column = start + tl.arange(0, BLOCK)[None, :]
        inside = (row < rows) & (column < cols)
        if BACK:
            r = tl.load(r_row + column, mask=inside, other=0.0, eviction_policy=LOAD).to(tl.float32)
        else:
            r = added(x_row, residual_row, column, inside, LOAD, DTYPE)
            tl.store(r_row + column, r.to(DTYPE), mask=inside, eviction_policy=STORE)
        w = r
        if HAS_WEIGHT:
            w = tl.load(w_ptr + column, mask=column < cols, other=0.0)
        tl.store(y_ptr + wide * cols + column, scaled(r, rstd, w, offset, HAS_WEIGHT, LLAMA, DTYPE), mask=inside, eviction_policy=STORE)


@triton.jit(do_not_specialize=["rows"])
def persistent_kernel(
    y_ptr, r_ptr, x_ptr, residual_ptr, w_ptr, rows, cols_units, x_units, residual_units, eps, offset,
    UNIT: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, STAGES: tl.constexpr, HELD: tl.constexpr,
    HAS_WEIGHT: tl.constexpr, LLAMA: tl.constexpr, LOAD: tl.constexpr, STORE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Every grid-th tile of whole rows, the weight held."""
    begin(PDL)
    cols = cols_units * UNIT
    column = tl.arange(0, COLS)[None, :]
    DTYPE: tl.constexpr = y_ptr.dtype.element_ty
    w = column
    if HAS_WEIGHT and HELD:
        w = tl.load(w_ptr + column, mask=column < cols, other=0.0)
    for tile in tl.range(tl.program_id(0), tl.cdiv(rows, ROWS), tl.num_programs(0), num_stages=STAGES):
        row = (tile * ROWS + tl.arange(0, ROWS))[:, None]
        wide = row.to(tl.int64)
        inside = (row < rows) & (column < cols)
        r = added(x_ptr + wide * (x_units * UNIT), residual_ptr + wide * (residual_units * UNIT), column, inside, LOAD, DTYPE)
        rstd = tl.rsqrt(tl.sum(r * r, 1, keep_dims=True) / cols + eps)
        gain = w
        if HAS_WEIGHT and not HELD:
            gain = tl.load(w_ptr + column, mask=column < cols, other=0.0)
        tl.store(r_ptr + wide * cols + column, r.to(DTYPE), mask=inside, eviction_policy=STORE)
        tl.store(y_ptr + wide * cols + column, scaled(r, rstd, gain, offset, HAS_WEIGHT, LLAMA, DTYPE), mask=inside, eviction_policy=STORE)


def row(workload: Workload, config: Config) -> TritonLaunch:
    """One program for every `rows_per_program` rows."""
    constants = {"COLS": block_cols(workload), "EARLY": config["weight"] == "early", "AT_ONCE": config["stored"] == "at_once"}
    return _launch(row_kernel, workload, config, constants, _tiles(workload, config))


def sweep(workload: Workload, config: Config) -> TritonLaunch:
    """One program for every `rows_per_program` rows, two sweeps each."""
    block, back = int(config["block"]), config["second"] == "sum"
    constants = {"BLOCK": block, "STEPS": steps(workload, config), "BACK": back, "KEEP": policies(config)[2]}
    return _launch(sweep_kernel, workload, config, constants, _tiles(workload, config))


def persistent(workload: Workload, config: Config) -> TritonLaunch:
    """`programs_per_sm` programs on each multiprocessor, or one a tile where there are fewer."""
    programs = min(_tiles(workload, config), sm_count(workload) * int(config["programs_per_sm"]))
    constants = {"COLS": block_cols(workload), "STAGES": int(config["num_stages"]), "HELD": config["weight"] == "held"}
    return _launch(persistent_kernel, workload, config, constants, programs)


def _tiles(workload: Workload, config: Config) -> int:
    return int(triton.cdiv(workload.dim("rows"), int(config["rows_per_program"])))


def _launch(function: Any, workload: Workload, config: Config, constants: dict[str, Any], programs: int) -> TritonLaunch:
    rows, cols = workload.dim("rows"), workload.dim("cols")
    strides = (row_stride(workload, "x"), row_stride(workload, "residual"))
    unit = math.gcd(cols, *strides, 16)
    sizes = (rows, cols // unit, *(stride // unit for stride in strides))
    load, store, _ = policies(config)
    shared = {
        "UNIT": unit, "ROWS": int(config["rows_per_program"]),
        "HAS_WEIGHT": workload.has("w"), "LLAMA": workload.static("casting") == "llama",
        "LOAD": load, "STORE": store, "PDL": overlaps(config),
    }  # fmt: skip

    def arguments(
        outputs: tuple[Tensor, ...], x: Tensor, residual: Tensor, w: Tensor | None, eps: float, offset: float, casting: str
    ) -> tuple[Any, ...]:
        return outputs[0], outputs[1], x, residual, w, *sizes, float(eps), float(offset)

    return TritonLaunch(
        function, (programs, 1, 1), arguments, {**constants, **shared}, num_warps=int(config["num_warps"]), pdl=overlaps(config)
    )
