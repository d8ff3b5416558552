"""Rows that start anywhere, in 16-byte accesses: what every kernel named `shifted` has of them, on the device and at its launch.

With 4095 columns of bf16 only every eighth row starts at a multiple of 16 bytes, and a compiler that has to serve all of them takes 2
bytes at a time: 14.4 sectors a request where 3.6 would do, and the load and store units bound.

Rows r and r + 8 start equally far from such a multiple (`period` is less where width and 16 bytes share a divisor). So a program takes
rows of one kind: up to 7 elements one by one (head), whole vectors (body), up to 7 again (tail), with one shift for all its rows.
"""

# A Triton function is typed by its compiler, not by mypy.
# mypy: disable-error-code="untyped-decorator, no-untyped-def"

import math
from typing import Any

import triton
import triton.language as tl

from kernelyard.plugins.triton_jit.defaults import block_cols
from kernelyard.plugins.triton_jit.launch import policies, vector
from kernelyard.plugins.triton_jit.overlap import overlaps
from kernelyard.registry.spec import Config, Workload


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


@triton.jit
def rows_of_a_kind(rows, cols, VECTOR: tl.constexpr, PERIOD: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr):
    """Where the rows of a program lie: head and body, which all of them have in common; elements from the tensor's start to each row and
    to its first aligned element; columns of the body as (1, COLS) and of the ends as (1, 2 VECTOR), and which of them exist."""
    kind = tl.program_id(0) % PERIOD
    row = (kind + PERIOD * (tl.program_id(0) // PERIOD * ROWS + tl.arange(0, ROWS)))[:, None]
    head, body = parts(kind, cols, VECTOR)
    start = row.to(tl.int64) * cols
    aligned = (start + VECTOR - 1) // VECTOR * VECTOR
    column = tl.arange(0, COLS)[None, :]
    inside = (row < rows) & (column < body)
    at_ends, exist = ends(head, body, cols, VECTOR)
    return head, body, start, aligned, column, inside, at_ends[None, :], exist[None, :] & (row < rows)


@triton.jit
def weights(w_ptr, head, body, at_ends, exist, COLS: tl.constexpr):
    """The weight at the body and at the ends of such rows, an element a lane."""
    flat = tl.arange(0, COLS)
    w = tl.load(w_ptr + head + flat, mask=flat < body, other=0.0)[None, :]
    return w, tl.load(w_ptr + at_ends, mask=exist, other=0.0)


def period(workload: Workload) -> int:
    """How many rows further the next one starts equally far from a multiple of 16 bytes."""
    return vector(workload) // math.gcd(workload.dim("cols"), vector(workload))


def constants(workload: Workload, config: Config) -> dict[str, Any]:
    """What is fixed at compile time in a kernel of rows of one kind."""
    load, store, _ = policies(config)
    return {
        "VECTOR": vector(workload), "PERIOD": period(workload), "ROWS": int(config["rows_per_program"]), "COLS": block_cols(workload),
        "LOAD": load, "STORE": store, "PDL": overlaps(config),
    }  # fmt: skip


def grid(workload: Workload, config: Config) -> tuple[int, int, int]:
    """Programs of each kind, times kinds."""
    kinds = period(workload)
    return (kinds * triton.cdiv(triton.cdiv(workload.dim("rows"), kinds), int(config["rows_per_program"])), 1, 1)
