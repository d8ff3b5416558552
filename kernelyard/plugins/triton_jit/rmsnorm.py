"""rmsnorm in Triton: y = x * rsqrt(mean(x^2) + eps) * (w + offset), sums in float32.

Bytes: x once, y once, w once a program (from L2 after the first). 4 flops an element: bound by memory everywhere but on a few
rows, where latency is the time.

row         a program holds (rows_per_program, cols) in registers: read, reduce, scale, write. Tile = whole rows, next power of two.
sweep       one program a row (or a few); sums squares block by block, then walks the row again out of L2 and writes.
persistent  a fixed grid, each program takes every grid-th tile and keeps the weight; loads run ahead by num_stages.

Seen on one H200, bf16: in a model the L2 is full of others' lines, and with evict_first on both sides a kernel has little of it: a sum
of 268 million elements is 6% slower so than without any hint. So no hint is the default; earlier figures (97% of a copy with
evict_first on both sides at 4096 columns) were of an L2 that held nothing else. At 32768 columns `row` stops at 79% of a copy; `sweep`
reaches 97% in blocks of 8192 with 32 warps, 82% with 16, and gains 1 to 7% by being compiled for the number of its blocks.
Lost: cache_modifier together with eviction_policy (ptxas refuses both on sm_90); a weight cast to float32 by the caller (a launch more).

`unit` is the largest power of two up to 16 that divides width and row stride: Triton itself tells only multiples of 16 from the rest,
and would read a width of 1000 two bytes at a time.
"""

# A Triton function is typed by its compiler, not by mypy.
# mypy: disable-error-code="untyped-decorator, no-untyped-def"

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from kernelyard.plugins.triton_jit.defaults import block_cols
from kernelyard.plugins.triton_jit.launch import policies, row_view, sm_count, steps
from kernelyard.plugins.triton_jit.overlap import begin, overlaps
from kernelyard.registry.backend import TritonLaunch
from kernelyard.registry.spec import Config, Workload


@triton.jit
def scaled(x, rstd, w, offset, HAS_WEIGHT: tl.constexpr, LLAMA: tl.constexpr, DTYPE: tl.constexpr):
    """x * rstd * (w + offset), rounded as the casting says; products of two half-precision numbers are exact in float32."""
    y = x * rstd
    if LLAMA:
        y = y.to(DTYPE).to(tl.float32)
    if HAS_WEIGHT:
        gain = w.to(tl.float32) + offset
        if LLAMA:
            gain = gain.to(DTYPE).to(tl.float32)
        y = y * gain
    return y.to(DTYPE)


@triton.jit(do_not_specialize=["rows"])
def row_kernel(
    y_ptr, x_ptr, w_ptr, rows, cols_units, stride_units, eps, offset,
    UNIT: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
    HAS_WEIGHT: tl.constexpr, LLAMA: tl.constexpr, EARLY: tl.constexpr, LOAD: tl.constexpr, STORE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """A tile of whole rows in registers."""
    begin(PDL)
    cols = cols_units * UNIT
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS))[:, None]
    column = tl.arange(0, COLS)[None, :]
    inside = (row < rows) & (column < cols)
    wide = row.to(tl.int64)
    x = tl.load(x_ptr + wide * (stride_units * UNIT) + column, mask=inside, other=0.0, eviction_policy=LOAD)
    w = x
    if HAS_WEIGHT and EARLY:
        w = tl.load(w_ptr + column, mask=column < cols, other=0.0)
    x = x.to(tl.float32)
    rstd = tl.rsqrt(tl.sum(x * x, 1, keep_dims=True) / cols + eps)
    if HAS_WEIGHT and not EARLY:
        w = tl.load(w_ptr + column, mask=column < cols, other=0.0)
    y = scaled(x, rstd, w, offset, HAS_WEIGHT, LLAMA, y_ptr.dtype.element_ty)
    tl.store(y_ptr + wide * cols + column, y, mask=inside, eviction_policy=STORE)


@triton.jit(do_not_specialize=["rows"])
def sweep_kernel(
    y_ptr, x_ptr, w_ptr, rows, cols_units, stride_units, eps, offset,
    UNIT: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, STEPS: tl.constexpr,
    HAS_WEIGHT: tl.constexpr, LLAMA: tl.constexpr, KEEP: tl.constexpr, LOAD: tl.constexpr, STORE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Block by block over the rows of a program, twice."""
    begin(PDL)
    cols = STEPS * BLOCK if STEPS else cols_units * UNIT
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS))[:, None]
    wide = row.to(tl.int64)
    x_row = x_ptr + wide * (stride_units * UNIT)
    y_row = y_ptr + wide * cols
    squares = tl.zeros((ROWS, BLOCK), tl.float32)
    for start in range(0, cols, BLOCK):
        column = start + tl.arange(0, BLOCK)[None, :]
        inside = (row < rows) & (column < cols)
        x = tl.load(x_row + column, mask=inside, other=0.0, eviction_policy=KEEP).to(tl.float32)
        squares += x * x
    rstd = tl.rsqrt(tl.sum(squares, 1, keep_dims=True) / cols + eps)
    for start in range(0, cols, BLOCK):
        column = start + tl.arange(0, BLOCK)[None, :]
        inside = (row < rows) & (column < cols)
        x = tl.load(x_row + column, mask=inside, other=0.0, eviction_policy=LOAD)
        w = x
        if HAS_WEIGHT:
            w = tl.load(w_ptr + column, mask=column < cols, other=0.0, eviction_policy=KEEP)
        y = scaled(x.to(tl.float32), rstd, w, offset, HAS_WEIGHT, LLAMA, y_ptr.dtype.element_ty)
        tl.store(y_row + column, y, mask=inside, eviction_policy=STORE)


@triton.jit(do_not_specialize=["rows"])
def persistent_kernel(
    y_ptr, x_ptr, w_ptr, rows, cols_units, stride_units, eps, offset,
    UNIT: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, STAGES: tl.constexpr, HELD: tl.constexpr,
    HAS_WEIGHT: tl.constexpr, LLAMA: tl.constexpr, LOAD: tl.constexpr, STORE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Every grid-th tile of whole rows, the weight held."""
    begin(PDL)
    cols = cols_units * UNIT
    column = tl.arange(0, COLS)[None, :]
    w = column
    if HAS_WEIGHT and HELD:
        w = tl.load(w_ptr + column, mask=column < cols, other=0.0)
    for tile in tl.range(tl.program_id(0), tl.cdiv(rows, ROWS), tl.num_programs(0), num_stages=STAGES):
        row = (tile * ROWS + tl.arange(0, ROWS))[:, None]
        wide = row.to(tl.int64)
        inside = (row < rows) & (column < cols)
        x = tl.load(x_ptr + wide * (stride_units * UNIT) + column, mask=inside, other=0.0, eviction_policy=LOAD).to(tl.float32)
        rstd = tl.rsqrt(tl.sum(x * x, 1, keep_dims=True) / cols + eps)
        gain = w
        if HAS_WEIGHT and not HELD:
            gain = tl.load(w_ptr + column, mask=column < cols, other=0.0)
        y = scaled(x, rstd, gain, offset, HAS_WEIGHT, LLAMA, y_ptr.dtype.element_ty)
        tl.store(y_ptr + wide * cols + column, y, mask=inside, eviction_policy=STORE)


def row(workload: Workload, config: Config) -> TritonLaunch:
    """One program for every `rows_per_program` rows."""
    together = int(config["rows_per_program"])
    load, store, _ = policies(config)
    early = config["weight"] == "early"
    constants = {"ROWS": together, "COLS": block_cols(workload), "EARLY": early, "LOAD": load, "STORE": store}
    return _launch(row_kernel, workload, config, triton.cdiv(workload.dim("rows"), together), constants)


def sweep(workload: Workload, config: Config) -> TritonLaunch:
    """One program for every `rows_per_program` rows, two sweeps each."""
    together = int(config["rows_per_program"])
    load, store, keep = policies(config)
    shape = {"ROWS": together, "BLOCK": int(config["block"]), "STEPS": steps(workload, config)}
    constants = {**shape, "KEEP": keep, "LOAD": load, "STORE": store}
    return _launch(sweep_kernel, workload, config, triton.cdiv(workload.dim("rows"), together), constants)


def persistent(workload: Workload, config: Config) -> TritonLaunch:
    """`programs_per_sm` programs on each multiprocessor, or one a tile where there are fewer."""
    together = int(config["rows_per_program"])
    load, store, _ = policies(config)
    constants = {
        "ROWS": together, "COLS": block_cols(workload), "STAGES": int(config["num_stages"]), "HELD": config["weight"] == "held",
        "LOAD": load, "STORE": store,
    }  # fmt: skip
    programs = min(triton.cdiv(workload.dim("rows"), together), sm_count(workload) * int(config["programs_per_sm"]))
    return _launch(persistent_kernel, workload, config, programs, constants)


def _launch(function: Any, workload: Workload, config: Config, programs: int, constants: dict[str, Any]) -> TritonLaunch:
    view = row_view(workload)
    rows, cols, stride = view.rows, view.cols_units, view.stride_units
    casting = {"HAS_WEIGHT": workload.has("w"), "LLAMA": workload.static("casting") == "llama", "UNIT": view.unit, "PDL": overlaps(config)}

    def arguments(outputs: tuple[Tensor, ...], x: Tensor, w: Tensor | None, eps: float, offset: float, casting: str) -> tuple[Any, ...]:
        # A float in Python even where the caller gave an int: the type is part of the compiled signature.
        return outputs[0], x, w, rows, cols, stride, float(eps), float(offset)

    return TritonLaunch(
        function, (programs, 1, 1), arguments, {**constants, **casting}, num_warps=int(config["num_warps"]), pdl=overlaps(config)
    )
