"""softmax in Triton: y = exp(x - max) / sum(exp(x - max)) in float32; rows of all -inf give zeros.

Bytes: x once, y once. 5 flops and 1 (row) or 2 (sweep) exponentials an element: bound by memory; at 4 TB/s of bf16 the
exponential units of an H200 run at a third (row) or two thirds (sweep) of their rate, so a third exponential would bound.

row         a program holds (rows_per_program, cols) in registers. Tile = whole rows, next power of two.
persistent  a fixed grid, each program takes every grid-th tile; the next ones are copied to shared memory meanwhile (num_stages).
sweep       online (Milakov and Gimelshein 2018, algorithm 3): one maximum and one sum a block of columns, rescaled when the maximum
            grows; then the row again out of L2, written.
Two more for rows that `row` serves badly: softmax_shifted (widths that 16 bytes do not divide) and softmax_packed (wide rows).

Seen on one H200, bf16, launches of one kernel following each other: `row` makes 98 to 99% of a copy from 1024 to 8192 columns. At
(2048, 32768) it stops at 75%, as one program fits on a multiprocessor and nothing moves while it reduces; `sweep` makes 81%, in blocks of
8192 with the first sweep kept in L2 (72% without), `persistent` 87% with two rows ahead and 64% with one. At 4096 columns
`persistent` loses 8% to `row`: many small programs hide more than one buffer each does. evict_first anywhere costs 1 to 6% in `row`.

NaN: tl.max passes over it, and the sum does not: exp(NaN) makes the sum and so the whole row NaN. +inf: inf - inf does the same.
-inf alone: the maximum is put to 0, every exponential is 0, and 1 / sum is put to 0.
`unit`: see rmsnorm. Lost: a maximum and a sum for each column of the block (no reduction in the loop, but 3 exponentials an element).
"""

# A Triton function is typed by its compiler, not by mypy.
# mypy: disable-error-code="untyped-decorator, no-untyped-def"

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from kernelyard.plugins.triton_jit.defaults import block_cols
from kernelyard.plugins.triton_jit.launch import policies, row_view, sm_count
from kernelyard.plugins.triton_jit.overlap import begin, overlaps
from kernelyard.registry.backend import TritonLaunch
from kernelyard.registry.spec import Config, Workload


@triton.jit
def finite(maximum):
    """0 in place of -inf, so that exp(-inf - maximum) is 0 and not NaN."""
    return tl.where(maximum == float("-inf"), 0.0, maximum)


@triton.jit
def reciprocal(total):
    """1 / total, and 0 for a row whose every exponential was 0."""
    return tl.where(total == 0.0, 0.0, 1.0 / tl.where(total == 0.0, 1.0, total))


@triton.jit
def loaded(pointer, inside, FULL: tl.constexpr, POLICY: tl.constexpr):
    """A tile, -inf where there is none. Of a full one no element is asked: a seventh of the instructions of `persistent`."""
    if FULL:
        return tl.load(pointer, eviction_policy=POLICY)
    return tl.load(pointer, mask=inside, other=float("-inf"), eviction_policy=POLICY)


@triton.jit
def stored(pointer, y, inside, FULL: tl.constexpr, POLICY: tl.constexpr):
    """A tile written, in the dtype of where it goes."""
    if FULL:
        tl.store(pointer, y.to(pointer.dtype.element_ty), eviction_policy=POLICY)
    else:
        tl.store(pointer, y.to(pointer.dtype.element_ty), mask=inside, eviction_policy=POLICY)


@triton.jit(do_not_specialize=["rows"])
def row_kernel(
    y_ptr, x_ptr, rows, cols_units, stride_units,
    UNIT: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, FULL: tl.constexpr,
    LOAD: tl.constexpr, STORE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """A tile of whole rows in registers."""
    begin(PDL)
    cols = cols_units * UNIT
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS))[:, None]
    column = tl.arange(0, COLS)[None, :]
    inside = (row < rows) & (column < cols)
    wide = row.to(tl.int64)
    x = loaded(x_ptr + wide * (stride_units * UNIT) + column, inside, FULL, LOAD).to(tl.float32)
    power = tl.exp(x - finite(tl.max(x, 1, keep_dims=True)))
    y = power * reciprocal(tl.sum(power, 1, keep_dims=True))
    stored(y_ptr + wide * cols + column, y, inside, FULL, STORE)


@triton.jit(do_not_specialize=["rows"])
def persistent_kernel(
    y_ptr, x_ptr, rows, cols_units, stride_units,
    UNIT: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, FULL: tl.constexpr,
    LOAD: tl.constexpr, STORE: tl.constexpr, PDL: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """Every grid-th tile of whole rows."""
    begin(PDL)
    cols = cols_units * UNIT
    column = tl.arange(0, COLS)[None, :]
    for tile in tl.range(tl.program_id(0), tl.cdiv(rows, ROWS), tl.num_programs(0), num_stages=STAGES):
        row = (tile * ROWS + tl.arange(0, ROWS))[:, None]
        inside = (row < rows) & (column < cols)
        wide = row.to(tl.int64)
        x = loaded(x_ptr + wide * (stride_units * UNIT) + column, inside, FULL, LOAD).to(tl.float32)
        power = tl.exp(x - finite(tl.max(x, 1, keep_dims=True)))
        y = power * reciprocal(tl.sum(power, 1, keep_dims=True))
        stored(y_ptr + wide * cols + column, y, inside, FULL, STORE)


@triton.jit(do_not_specialize=["rows"])
def sweep_kernel(
    y_ptr, x_ptr, rows, cols_units, stride_units,
    UNIT: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, KEEP: tl.constexpr, LOAD: tl.constexpr, STORE: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """Block by block over the rows of a program, twice."""
    begin(PDL)
    cols = cols_units * UNIT
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS))[:, None]
    wide = row.to(tl.int64)
    x_row = x_ptr + wide * (stride_units * UNIT)
    y_row = y_ptr + wide * cols
    maximum = tl.full((ROWS, 1), float("-inf"), tl.float32)
    total = tl.zeros((ROWS, 1), tl.float32)
    for start in range(0, cols, BLOCK):
        column = start + tl.arange(0, BLOCK)[None, :]
        inside = (row < rows) & (column < cols)
        x = tl.load(x_row + column, mask=inside, other=float("-inf"), eviction_policy=KEEP).to(tl.float32)
        higher = tl.maximum(maximum, tl.max(x, 1, keep_dims=True))
        shift = finite(higher)
        total = total * tl.exp(maximum - shift) + tl.sum(tl.exp(x - shift), 1, keep_dims=True)
        maximum = higher
    shift = finite(maximum)
    inverse = reciprocal(total)
    for start in range(0, cols, BLOCK):
        column = start + tl.arange(0, BLOCK)[None, :]
        inside = (row < rows) & (column < cols)
        x = tl.load(x_row + column, mask=inside, other=float("-inf"), eviction_policy=LOAD).to(tl.float32)
        y = tl.exp(x - shift) * inverse
        tl.store(y_row + column, y.to(y_ptr.dtype.element_ty), mask=inside, eviction_policy=STORE)


def row(workload: Workload, config: Config) -> TritonLaunch:
    """One program for every `rows_per_program` rows."""
    return _launch(row_kernel, workload, config, _tiles(workload, config), {"COLS": block_cols(workload), "FULL": full(workload, config)})


def persistent(workload: Workload, config: Config) -> TritonLaunch:
    """`programs_per_sm` programs on each multiprocessor, or one a tile where there are fewer."""
    programs = min(_tiles(workload, config), sm_count(workload) * int(config["programs_per_sm"]))
    constants = {"COLS": block_cols(workload), "FULL": full(workload, config), "STAGES": int(config["num_stages"])}
    return _launch(persistent_kernel, workload, config, programs, constants)


def sweep(workload: Workload, config: Config) -> TritonLaunch:
    """One program for every `rows_per_program` rows, two sweeps each."""
    constants = {"BLOCK": int(config["block"]), "KEEP": policies(config)[2]}
    return _launch(sweep_kernel, workload, config, _tiles(workload, config), constants)


def full(workload: Workload, config: Config) -> bool:
    """Whether no tile of whole rows reaches past the tensor."""
    return workload.dim("cols") == block_cols(workload) and workload.dim("rows") % int(config["rows_per_program"]) == 0


def _tiles(workload: Workload, config: Config) -> int:
    return int(triton.cdiv(workload.dim("rows"), int(config["rows_per_program"])))


def _launch(function: Any, workload: Workload, config: Config, programs: int, constants: dict[str, Any]) -> TritonLaunch:
    view, (load, store, _) = row_view(workload), policies(config)
    rows, cols, stride = view.rows, view.cols_units, view.stride_units
    shared = {"UNIT": view.unit, "ROWS": int(config["rows_per_program"]), "LOAD": load, "STORE": store, "PDL": overlaps(config)}

    def arguments(outputs: tuple[Tensor, ...], x: Tensor) -> tuple[Any, ...]:
        return outputs[0], x, rows, cols, stride

    return TritonLaunch(
        function, (programs, 1, 1), arguments, {**constants, **shared}, num_warps=int(config["num_warps"]), pdl=overlaps(config)
    )
