"""rmsnorm of rows that start anywhere, in 16-byte accesses: `shifted`, for contiguous x of a width that 16 bytes do not divide.

Bytes and flops as in rmsnorm. With 4095 columns of bf16 only every eighth row starts at a multiple of 16 bytes, and a compiler that
has to serve all of them takes 2 bytes at a time: 14.4 sectors a request where 3.6 would do, and the load and store units bound.

Rows r and r + 8 start equally far from such a multiple (`PERIOD` is less where width and 16 bytes share a divisor). So a program takes
rows of one kind: up to 7 elements one by one (head), whole vectors (body), up to 7 again (tail), with one shift for all its rows.
Tile: (rows_per_program, cols) for the body, (rows_per_program, 16) for both ends. The weight is not aligned to the rows: it is
loaded an element a lane (coalesced, as a tile of its own shape, or Triton gives it the layout of x: 16 sectors a request), once a program.

Lost: vectors that reach into the neighbour's row and are masked afterwards (the last one reads past the tensor); eight copies of the
weight, one for each shift (a launch more); a tile of eight whole rows that starts aligned (eight masked sums over all of it).
"""

# A Triton function is typed by its compiler, not by mypy.
# mypy: disable-error-code="untyped-decorator, no-untyped-def"

import math
from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from kernelyard.plugins.triton_jit.defaults import block_cols
from kernelyard.plugins.triton_jit.launch import policies
from kernelyard.plugins.triton_jit.overlap import begin, overlaps
from kernelyard.plugins.triton_jit.rmsnorm import scaled
from kernelyard.registry.backend import TritonLaunch
from kernelyard.registry.spec import DTYPE_BYTES, Config, Workload


@triton.jit
def parts(kind, cols, VECTOR: tl.constexpr):
    """Elements of a row of this kind before its first aligned one, and of the whole vectors after them."""
    head = tl.minimum((VECTOR - (kind * cols) % VECTOR) % VECTOR, cols)
    return head, (cols - head) // VECTOR * VECTOR


@triton.jit
def ends(head, body, cols, VECTOR: tl.constexpr):
    """Columns of head and tail as one tile of (2 VECTOR,), and which of them exist."""
    place = tl.arange(0, 2 * VECTOR)
    first = place < VECTOR
    column = tl.where(first, place, head + body + place - VECTOR)
    return column, tl.where(first, place < head, column < cols)


@triton.jit(do_not_specialize=["rows"])
def shifted_kernel(
    y_ptr, x_ptr, w_ptr, rows, cols, eps, offset,
    VECTOR: tl.constexpr, PERIOD: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
    HAS_WEIGHT: tl.constexpr, LLAMA: tl.constexpr, LOAD: tl.constexpr, STORE: tl.constexpr, PDL: tl.constexpr,
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
    at_ends, exist = at_ends[None, :], exist[None, :] & (row < rows)
    x = tl.load(x_ptr + aligned + column, mask=inside, other=0.0, eviction_policy=LOAD)
    x_ends = tl.load(x_ptr + start + at_ends, mask=exist, other=0.0)
    w, w_ends = x, x_ends
    if HAS_WEIGHT:
        flat = tl.arange(0, COLS)
        w = tl.load(w_ptr + head + flat, mask=flat < body, other=0.0)[None, :]
        w_ends = tl.load(w_ptr + at_ends, mask=exist, other=0.0)
    x = x.to(tl.float32)
    x_ends = x_ends.to(tl.float32)
    squares = tl.sum(x * x, 1, keep_dims=True) + tl.sum(x_ends * x_ends, 1, keep_dims=True)
    rstd = tl.rsqrt(squares / cols + eps)
    y = scaled(x, rstd, w, offset, HAS_WEIGHT, LLAMA, y_ptr.dtype.element_ty)
    y_ends = scaled(x_ends, rstd, w_ends, offset, HAS_WEIGHT, LLAMA, y_ptr.dtype.element_ty)
    tl.store(y_ptr + aligned + column, y, mask=inside, eviction_policy=STORE)
    tl.store(y_ptr + start + at_ends, y_ends, mask=exist)


def vector(workload: Workload) -> int:
    """Elements in 16 bytes."""
    return 16 // DTYPE_BYTES[workload.dtype]


def period(workload: Workload) -> int:
    """How many rows further the next one starts equally far from a multiple of 16 bytes."""
    return vector(workload) // math.gcd(workload.dim("cols"), vector(workload))


def shifted(workload: Workload, config: Config) -> TritonLaunch:
    """`rows_per_program` rows of one kind a program."""
    rows, cols = workload.dim("rows"), workload.dim("cols")
    together, kinds = int(config["rows_per_program"]), period(workload)
    load, store, _ = policies(config)
    constants = {
        "VECTOR": vector(workload), "PERIOD": kinds, "ROWS": together, "COLS": block_cols(workload),
        "HAS_WEIGHT": workload.has("w"), "LLAMA": workload.static("casting") == "llama", "LOAD": load, "STORE": store,
        "PDL": overlaps(config),
    }  # fmt: skip

    def arguments(outputs: tuple[Tensor, ...], x: Tensor, w: Tensor | None, eps: float, offset: float, casting: str) -> tuple[Any, ...]:
        return outputs[0], x, w, rows, cols, float(eps), float(offset)

    grid = (kinds * triton.cdiv(triton.cdiv(rows, kinds), together), 1, 1)
    return TritonLaunch(shifted_kernel, grid, arguments, constants, num_warps=int(config["num_warps"]), pdl=overlaps(config))
