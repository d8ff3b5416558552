"""Products of 2 to 16 rows with a linear layer's weight, in Triton with tensor cores: matmul with b the transpose of (n, k), linear_swiglu.

skinny  a program has a few rows of the weight and all of k: sums (weights, 8 or 16) = W (weights, block_k) times x^T, `num_stages` tiles
        of both on their way. The factors stand in this order so that nothing is padded: 64 rows of W are one wgmma.m64n16k16 (m64n8k16
        for up to 8 rows of x), with x first 16 rows would be padded to 64, or left to mma.sync. With 16 or 32 rows it is mma.m16n8k16.
gated   the same for linear_swiglu: half of the tile's rows are the gate's, half up's, so that silu(gate) * up is a program's own.

Bytes: the weight once, x once a program, from L2: a quarter of the weight's with 64 rows of it a program, as much with 16.
Bound: memory. All programs of a grid should be resident, then they share the memory evenly and no multiprocessor waits for a second wave:
14336 columns are 224 programs of 64, two a multiprocessor, each with three or four tiles of 16 KB on their way: 80 KB a multiprocessor
and more, where latency alone asks for 23 (see `gemv`).

Compiled for sm_90 at 14336x4096: 30 to 80 registers, 46 and 51 by default at 16 rows, no spills; copies of 16 bytes past the registers by
cp.async, with the hint as an L2 policy, or one TMA copy a tile. Rows that start anywhere are loaded an element at a time through
registers: right, not fast.

Seen on one H200, bf16, 16x14336x4096. matmul: 31.1 us with 64 rows of the weight, 256 terms and 2 stages (cuBLAS 30.8, 29.1 to 33.3, in
the same run); 128 terms and 5 stages 32.0, by descriptor 31.8, as many by plain copies 32.0; 32 rows 33.4, 128 rows 32.3; 64 terms and 6
stages 43.4, a barrier for each being too many. linear_swiglu: 61.7, by descriptor 61.2, 64 rows 62.3, 64 terms 62.9; a quarter of the
weight's bytes beside torch.compile's 58.2 of another run, which rounds the gate and fails the contract's tolerance, as plain torch does.
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
from kernelyard.registry.backend import Descriptor, TritonLaunch
from kernelyard.registry.spec import Config, Workload


@triton.jit
def weighed(
    x_ptr, w_ptr, row, known, m, k, x_row, w_row,
    WEIGHTS: tl.constexpr, COLUMNS: tl.constexpr, BK: tl.constexpr, LOAD: tl.constexpr,
):  # fmt: skip
    """(WEIGHTS, COLUMNS) float32 sums: the weight's rows `row`, where `known`, with the m rows of x, over all of k."""
    some, column = tl.arange(0, BK), tl.arange(0, COLUMNS)
    w_at = w_ptr + row.to(tl.int64)[:, None] * w_row + some[None, :]
    x_at = x_ptr + column[None, :].to(tl.int64) * x_row + some[:, None]
    sums = tl.zeros((WEIGHTS, COLUMNS), tl.float32)
    for start in range(0, k, BK):
        w = tl.load(w_at, mask=known[:, None] & (some < k - start)[None, :], other=0.0, eviction_policy=LOAD)
        x = tl.load(x_at, mask=(some < k - start)[:, None] & (column < m)[None, :], other=0.0)
        sums = tl.dot(w, x, sums)
        w_at += BK
        x_at += BK
    return sums


@triton.jit
def described(x_ptr, w, row, m, k, x_row, WEIGHTS: tl.constexpr, COLUMNS: tl.constexpr, BK: tl.constexpr):
    """The same with rows of the weight from `row` on, which its descriptor copies; what lies beyond it is 0."""
    some, column = tl.arange(0, BK), tl.arange(0, COLUMNS)
    x_at = x_ptr + column[None, :].to(tl.int64) * x_row + some[:, None]
    sums = tl.zeros((WEIGHTS, COLUMNS), tl.float32)
    for start in range(0, k, BK):
        x = tl.load(x_at, mask=(some < k - start)[:, None] & (column < m)[None, :], other=0.0)
        sums = tl.dot(w.load([row, start]), x, sums)
        x_at += BK
    return sums


@triton.jit
def both_described(x_ptr, w, row, m, n, k, x_row, WEIGHTS: tl.constexpr, COLUMNS: tl.constexpr, BK: tl.constexpr):
    """Sums of the gate's rows from `row` on and of up's, which are n further."""
    some, column = tl.arange(0, BK), tl.arange(0, COLUMNS)
    x_at = x_ptr + column[None, :].to(tl.int64) * x_row + some[:, None]
    gate, up = tl.zeros((WEIGHTS, COLUMNS), tl.float32), tl.zeros((WEIGHTS, COLUMNS), tl.float32)
    for start in range(0, k, BK):
        x = tl.load(x_at, mask=(some < k - start)[:, None] & (column < m)[None, :], other=0.0)
        gate = tl.dot(w.load([row, start]), x, gate)
        up = tl.dot(w.load([n + row, start]), x, up)
        x_at += BK
    return gate, up


@triton.jit
def skinny_kernel(
    out_ptr, a_ptr, b_ptr, bias_ptr, residual_ptr, scale, m, n, k, a_row, b_column, r_row, r_column,
    WEIGHTS: tl.constexpr, COLUMNS: tl.constexpr, BK: tl.constexpr, DESCRIBED: tl.constexpr, LOAD: tl.constexpr,
    ACTIVATION: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """WEIGHTS columns of the result, all of its rows."""
    begin(PDL)
    column = tl.program_id(0) * WEIGHTS + tl.arange(0, WEIGHTS)
    if DESCRIBED:
        sums = described(a_ptr, b_ptr, tl.program_id(0) * WEIGHTS, m, k, a_row, WEIGHTS, COLUMNS, BK)
    else:
        sums = weighed(a_ptr, b_ptr, column, column < n, m, k, a_row, b_column, WEIGHTS, COLUMNS, BK, LOAD)
    row = tl.arange(0, COLUMNS).to(tl.int64)[None, :]
    known = (column < n)[:, None] & (row < m)
    there = row * r_row + column.to(tl.int64)[:, None] * r_column
    sums = ended(sums, bias_ptr, residual_ptr, column[:, None], there, (column < n)[:, None], known, scale, ACTIVATION)
    tl.store(out_ptr + row * n + column[:, None], sums.to(out_ptr.dtype.element_ty), mask=known)


@triton.jit
def skinny_gated_kernel(
    out_ptr, x_ptr, w_ptr, m, n, k, x_row, w_row,
    WEIGHTS: tl.constexpr, COLUMNS: tl.constexpr, BK: tl.constexpr, DESCRIBED: tl.constexpr, LOAD: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """WEIGHTS / 2 columns: of a tile's rows eight belong to the gate, then eight to up, which a thread's fragments have side by side."""
    begin(PDL)
    HALF: tl.constexpr = WEIGHTS // 2
    first = tl.program_id(0) * HALF
    if DESCRIBED:
        gate, up = both_described(x_ptr, w_ptr, first, m, n, k, x_row, HALF, COLUMNS, BK)
    else:
        r = tl.arange(0, WEIGHTS)
        column = first + r // 16 * 8 + r % 8
        weight = column + (r // 8 % 2).to(tl.int64) * n
        sums = weighed(x_ptr, w_ptr, weight, column < n, m, k, x_row, w_row, WEIGHTS, COLUMNS, BK, LOAD)
        gate, up = tl.split(sums.reshape(WEIGHTS // 16, 2, 8, COLUMNS).permute(0, 2, 3, 1))
        gate, up = gate.reshape(HALF, COLUMNS), up.reshape(HALF, COLUMNS)
    y = gate * sigmoid(gate) * up
    column, row = first + tl.arange(0, HALF), tl.arange(0, COLUMNS).to(tl.int64)[None, :]
    known = (column < n)[:, None] & (row < m)
    tl.store(out_ptr + row * n + column[:, None], y.to(out_ptr.dtype.element_ty), mask=known)


def _constants(rows: int, config: Config) -> dict[str, Any]:
    """Columns of a product are eight at least."""
    copy = config["copy"]
    return {
        "WEIGHTS": int(config["weights"]), "COLUMNS": 8 if rows <= 8 else 16, "BK": int(config["block_k"]),
        "DESCRIBED": copy == "descriptor", "LOAD": "evict_first" if copy == "evict_first" else "", "PDL": overlaps(config),
    }  # fmt: skip


def _options(config: Config) -> dict[str, Any]:
    return {"num_warps": int(config["num_warps"]), "num_stages": int(config["num_stages"]), "pdl": overlaps(config)}


def _weight(tensor: Tensor, rows: int, k: int, pitch: int, config: Config, at_once: int) -> Tensor | Descriptor:
    """The weight as the config's way of copying takes it."""
    if config["copy"] != "descriptor":
        return tensor
    return Descriptor(tensor, (rows, k), (pitch, 1), (at_once, int(config["block_k"])))


def skinny(workload: Workload, config: Config) -> TritonLaunch:
    """One launch, a program for so many columns of the result."""
    m, n, k = (workload.dim(name) for name in "mnk")
    _, a_row, _ = strides(workload, "a")
    _, _, b_column = strides(workload, "b")
    _, r_row, r_column = strides(workload, "residual")
    pitch = b_column if n > 1 else -(-k // 8) * 8
    fixed = (m, n, k, a_row, pitch, r_row, r_column)
    constants = {**_constants(m, config), "ACTIVATION": workload.static("activation")}

    def arguments(
        outputs: tuple[Tensor, ...], a: Tensor, b: Tensor, bias: Tensor | None, residual: Tensor | None, scale: float, *names: str
    ) -> tuple[Any, ...]:
        return outputs[0], a, _weight(b, n, k, pitch, config, constants["WEIGHTS"]), bias, residual, scale, *fixed

    return TritonLaunch(skinny_kernel, (triton.cdiv(n, constants["WEIGHTS"]), 1, 1), arguments, constants, **_options(config))


def gated(workload: Workload, config: Config) -> TritonLaunch:
    """The same for linear_swiglu."""
    rows, n, k = (workload.dim(name) for name in ("rows", "n", "k"))
    pitch = workload["w"].strides[0]
    fixed = (rows, n, k, workload["x"].strides[-2], pitch)
    constants = _constants(rows, config)

    def arguments(outputs: tuple[Tensor, ...], x: Tensor, w: Tensor) -> tuple[Any, ...]:
        return outputs[0], x, _weight(w, 2 * n, k, pitch, config, constants["WEIGHTS"] // 2), *fixed

    return TritonLaunch(skinny_gated_kernel, (triton.cdiv(2 * n, constants["WEIGHTS"]), 1, 1), arguments, constants, **_options(config))
