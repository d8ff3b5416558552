"""Few rows against a linear layer's weight, in Triton: matmul for m up to 4 with b the transpose of (n, k), and linear_swiglu.

gemv    a program has a few rows of the weight and sums their products with each row of a, a chunk of k at a time; where a chunk is
gated   all of k every load of the weight is in flight before the first product. No tensor cores.

Bytes: the weight once, a once a program, from L2. Bound: memory. How much must be in flight: 4.3 TB/s times 700 ns are 3 MB, 23 KB
a multiprocessor (Little's law), so 512 threads with four loads of 16 bytes each.

`hint` load marks the weight evict_first. Where L2 is full of others' lines, as in a model, hints on stores were seen to lose.
Every program waits for the kernel ahead before its first load: a weight may be what that one wrote.

Lost: asking for the rows' lines in L2 ahead of that wait (71.6 us where 53.5 were, gated, 14336 by 4096: each line is asked for twice);
CUDA C++ that loads weights straight into the fragments of tensor cores, warps sharing k (34.0 us at 14336 by 4096, cuBLAS 30.7).
"""

# A Triton function is typed by its compiler, not by mypy.
# mypy: disable-error-code="untyped-decorator, no-untyped-def"

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from kernelyard.plugins.triton_jit.ending import ended, sigmoid
from kernelyard.plugins.triton_jit.matmul import strides
from kernelyard.plugins.triton_jit.overlap import begin, overlaps
from kernelyard.registry.backend import TritonLaunch
from kernelyard.registry.spec import Config, Workload


@triton.jit
def dots(x_ptr, w_ptr, row, rows, k, w_row, WEIGHTS: tl.constexpr, CHUNK: tl.constexpr, LOAD: tl.constexpr):
    """(WEIGHTS,) sums of x, k long, with rows `row` of the weight."""
    at = w_ptr + row.to(tl.int64)[:, None] * w_row
    sums = tl.zeros((WEIGHTS,), tl.float32)
    for start in range(0, k, CHUNK):
        some = start + tl.arange(0, CHUNK)
        w = tl.load(at + some[None, :], mask=(row < rows)[:, None] & (some < k)[None, :], other=0.0, eviction_policy=LOAD)
        x = tl.load(x_ptr + some, mask=some < k, other=0.0).to(tl.float32)
        sums += tl.sum(w.to(tl.float32) * x[None, :], 1)
    return sums


@triton.jit
def gemv_kernel(
    out_ptr, a_ptr, b_ptr, bias_ptr, residual_ptr, scale, n, k, a_row, b_column, r_row, r_column,
    M: tl.constexpr, WEIGHTS: tl.constexpr, CHUNK: tl.constexpr, LOAD: tl.constexpr, ACTIVATION: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """A few columns of the result, all of its rows: the second row of a finds the weight in L1."""
    begin(PDL)
    column = tl.program_id(0) * WEIGHTS + tl.arange(0, WEIGHTS)
    known = column < n
    for m in tl.static_range(M):
        sums = dots(a_ptr + m * a_row, b_ptr, column, n, k, b_column, WEIGHTS, CHUNK, LOAD)
        there = m * r_row + column.to(tl.int64) * r_column
        sums = ended(sums, bias_ptr, residual_ptr, column, there, known, known, scale, ACTIVATION)
        tl.store(out_ptr + m * tl.cast(n, tl.int64) + column, sums.to(out_ptr.dtype.element_ty), mask=known)


@triton.jit
def gated_kernel(
    out_ptr, x_ptr, w_ptr, n, k, x_row, w_row,
    M: tl.constexpr, WEIGHTS: tl.constexpr, CHUNK: tl.constexpr, LOAD: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """silu(gate) * up for a few columns, all rows."""
    begin(PDL)
    column = tl.program_id(0) * WEIGHTS + tl.arange(0, WEIGHTS)
    up_ptr = w_ptr + tl.cast(n, tl.int64) * w_row  # an n of 1 is a plain number here
    for m in tl.static_range(M):
        gate = dots(x_ptr + m * x_row, w_ptr, column, n, k, w_row, WEIGHTS, CHUNK, LOAD)
        up = dots(x_ptr + m * x_row, up_ptr, column, n, k, w_row, WEIGHTS, CHUNK, LOAD)
        y = gate * sigmoid(gate) * up
        tl.store(out_ptr + m * tl.cast(n, tl.int64) + column, y.to(out_ptr.dtype.element_ty), mask=column < n)


def _constants(rows: int, config: Config) -> dict[str, Any]:
    load = "evict_first" if config["hint"] == "load" else ""
    return {"M": rows, "WEIGHTS": int(config["weights"]), "CHUNK": int(config["chunk"]), "LOAD": load, "PDL": overlaps(config)}


def gemv(workload: Workload, config: Config) -> TritonLaunch:
    """One program a few columns of the result."""
    m, n, k = (workload.dim(name) for name in "mnk")
    _, a_row, _ = strides(workload, "a")
    _, _, b_column = strides(workload, "b")
    _, r_row, r_column = strides(workload, "residual")
    fixed = (n, k, a_row if m > 1 else k, b_column if n > 1 else k, r_row, r_column)
    constants = {**_constants(m, config), "ACTIVATION": workload.static("activation")}

    def arguments(
        outputs: tuple[Tensor, ...], a: Tensor, b: Tensor, bias: Tensor | None, residual: Tensor | None, scale: float, *names: str
    ) -> tuple[Any, ...]:
        return outputs[0], a, b, bias, residual, scale, *fixed

    grid = triton.cdiv(n, constants["WEIGHTS"]) if m else 0
    return TritonLaunch(gemv_kernel, (grid, 1, 1), arguments, constants, num_warps=int(config["num_warps"]), pdl=overlaps(config))


def gated(workload: Workload, config: Config) -> TritonLaunch:
    """The same for linear_swiglu."""
    rows, n, k = (workload.dim(name) for name in ("rows", "n", "k"))
    x, w = workload["x"], workload["w"]
    fixed = (n, k, x.strides[-2] if rows > 1 else k, w.strides[0] if n else k)
    constants = _constants(rows, config)

    def arguments(outputs: tuple[Tensor, ...], x: Tensor, w: Tensor) -> tuple[Any, ...]:
        return outputs[0], x, w, *fixed

    grid = triton.cdiv(n, constants["WEIGHTS"]) if rows else 0
    return TritonLaunch(gated_kernel, (grid, 1, 1), arguments, constants, num_warps=int(config["num_warps"]), pdl=overlaps(config))
