"""A norm and the linear layers behind it for 2 to 16 rows, in Triton with tensor cores: rmsnorm_linear and rmsnorm_linear_swiglu.

skinny  as `skinny`: a program has a few rows of the weight and all of k, sums (weights, 8 or 16) = W (weights, block_k) times the rows of
        x, turned. x is normalised on its way from registers to the product, so the norm has no launch and no memory of its own.
gated   half of the tile's rows are the gate's, half up's.

`norm` first: a sweep over x for its mean squares, then factors rounded as Llama does. x twice a program, from L2: with 64 rows of the
weight half as many bytes as it has. after: factors x * norm, rounded once, and sums times 1 / rms at the end, so x is read once; the
squares are summed beside the products. Only for bfloat16, where x * norm can't pass the largest number before its square does.

Bound: memory. Weights are not asked for ahead of the wait here, even if constant: Triton's pipeline starts the weight's copies and x's
together. Not measured yet; the same products without a norm (`skinny`) neither.
"""

# A Triton function is typed by its compiler, not by mypy.
# mypy: disable-error-code="untyped-decorator, no-untyped-def"

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from kernelyard.plugins.triton_jit.ending import sigmoid
from kernelyard.plugins.triton_jit.overlap import begin, overlaps
from kernelyard.registry.backend import TritonLaunch
from kernelyard.registry.spec import Config, Workload


@triton.jit
def inverses(x_at, some, m, k, eps, COLUMNS: tl.constexpr, BK: tl.constexpr):
    """(1, COLUMNS) of 1 / sqrt(mean square + eps) for the rows of x; `x_at` (BK, COLUMNS) are pointers to their starts."""
    column = tl.arange(0, COLUMNS)
    squares = tl.zeros((BK, COLUMNS), tl.float32)
    for start in range(0, k, BK):
        x = tl.load(x_at, mask=(some < k - start)[:, None] & (column < m)[None, :], other=0.0).to(tl.float32)
        squares += x * x
        x_at += BK
    return tl.rsqrt(tl.sum(squares, 0) / k + eps)[None, :]


@triton.jit
def normed_sums(
    x_ptr, norm_ptr, w_ptr, row, known, m, k, x_row, w_row, eps,
    WEIGHTS: tl.constexpr, COLUMNS: tl.constexpr, BK: tl.constexpr, LOAD: tl.constexpr, AFTER: tl.constexpr,
):  # fmt: skip
    """(WEIGHTS, COLUMNS) float32: the weight's rows `row`, where `known`, with the m rows of x normalised."""
    some, column = tl.arange(0, BK), tl.arange(0, COLUMNS)
    w_at = w_ptr + row.to(tl.int64)[:, None] * w_row + some[None, :]
    x_at = x_ptr + column[None, :].to(tl.int64) * x_row + some[:, None]
    norm_at = norm_ptr + some[:, None] + 0 * column[None, :]  # as x lies: of (BK, 1) each thread would load two bytes, and wait
    sums = tl.zeros((WEIGHTS, COLUMNS), tl.float32)
    squares = tl.zeros((BK, COLUMNS), tl.float32)
    inverse = tl.full((1, COLUMNS), 1.0, tl.float32)
    if not AFTER:
        inverse = inverses(x_at, some, m, k, eps, COLUMNS, BK)
    for start in range(0, k, BK):
        w = tl.load(w_at, mask=known[:, None] & (some < k - start)[None, :], other=0.0, eviction_policy=LOAD)
        x = tl.load(x_at, mask=(some < k - start)[:, None] & (column < m)[None, :], other=0.0)
        norm = tl.load(norm_at, mask=(some < k - start)[:, None] & (column < m)[None, :], other=0.0).to(tl.float32)
        wide = x.to(tl.float32)
        if AFTER:
            squares += wide * wide
            factor = (wide * norm).to(x.dtype)
        else:
            factor = ((wide * inverse).to(x.dtype).to(tl.float32) * norm).to(x.dtype)
        sums = tl.dot(w, factor, sums)
        w_at += BK
        x_at += BK
        norm_at += BK
    if AFTER:
        sums *= tl.rsqrt(tl.sum(squares, 0) / k + eps)[None, :]
    return sums


@triton.jit
def skinny_kernel(
    out_ptr, x_ptr, norm_ptr, w_ptr, bias_ptr, eps, m, n, k, x_row, w_row,
    WEIGHTS: tl.constexpr, COLUMNS: tl.constexpr, BK: tl.constexpr, LOAD: tl.constexpr, AFTER: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """WEIGHTS columns of the result, all of its rows."""
    begin(PDL)
    column = tl.program_id(0) * WEIGHTS + tl.arange(0, WEIGHTS)
    sums = normed_sums(x_ptr, norm_ptr, w_ptr, column, column < n, m, k, x_row, w_row, eps, WEIGHTS, COLUMNS, BK, LOAD, AFTER)
    if bias_ptr is not None:
        sums += tl.load(bias_ptr + column, mask=column < n, other=0.0).to(tl.float32)[:, None]
    row = tl.arange(0, COLUMNS).to(tl.int64)[None, :]
    known = (column < n)[:, None] & (row < m)
    tl.store(out_ptr + row * n + column[:, None], sums.to(out_ptr.dtype.element_ty), mask=known)


@triton.jit
def skinny_gated_kernel(
    out_ptr, x_ptr, norm_ptr, w_ptr, eps, m, n, k, x_row, w_row,
    WEIGHTS: tl.constexpr, COLUMNS: tl.constexpr, BK: tl.constexpr, LOAD: tl.constexpr, AFTER: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """WEIGHTS / 2 columns: of a tile's rows eight belong to the gate, then eight to up, which a thread's fragments have side by side."""
    begin(PDL)
    HALF: tl.constexpr = WEIGHTS // 2
    first = tl.program_id(0) * HALF
    r = tl.arange(0, WEIGHTS)
    column = first + r // 16 * 8 + r % 8
    weight = column + (r // 8 % 2).to(tl.int64) * n
    sums = normed_sums(x_ptr, norm_ptr, w_ptr, weight, column < n, m, k, x_row, w_row, eps, WEIGHTS, COLUMNS, BK, LOAD, AFTER)
    gate, up = tl.split(sums.reshape(WEIGHTS // 16, 2, 8, COLUMNS).permute(0, 2, 3, 1))
    gate, up = gate.reshape(HALF, COLUMNS), up.reshape(HALF, COLUMNS)
    y = gate * sigmoid(gate) * up
    column, row = first + tl.arange(0, HALF), tl.arange(0, COLUMNS).to(tl.int64)[None, :]
    known = (column < n)[:, None] & (row < m)
    tl.store(out_ptr + row * n + column[:, None], y.to(out_ptr.dtype.element_ty), mask=known)


def _launch(function: Any, workload: Workload, config: Config, weights: int, arguments: Any) -> TritonLaunch:
    constants = {
        "WEIGHTS": int(config["weights"]), "COLUMNS": 8 if workload.dim("rows") <= 8 else 16, "BK": int(config["block_k"]),
        "LOAD": "evict_first" if config["hint"] == "load" else "", "AFTER": config["norm"] == "after", "PDL": overlaps(config),
    }  # fmt: skip
    grid = (triton.cdiv(weights, constants["WEIGHTS"]), 1, 1)
    return TritonLaunch(
        function, grid, arguments, constants, num_warps=int(config["num_warps"]), num_stages=int(config["num_stages"]), pdl=overlaps(config)
    )


def _fixed(workload: Workload) -> tuple[int, int, int, int, int]:
    rows, n, k = (workload.dim(name) for name in ("rows", "n", "k"))
    return rows, n, k, workload["x"].strides[-2], workload["w"].strides[0]


def skinny(workload: Workload, config: Config) -> TritonLaunch:
    """One launch, a program for so many columns of the result."""
    fixed = _fixed(workload)

    def arguments(
        outputs: tuple[Tensor, ...], x: Tensor, norm: Tensor, w: Tensor, bias: Tensor | None, eps: float, constant_weights: bool
    ) -> tuple[Any, ...]:
        return outputs[0], x, norm, w, bias, float(eps), *fixed

    return _launch(skinny_kernel, workload, config, workload.dim("n"), arguments)


def gated(workload: Workload, config: Config) -> TritonLaunch:
    """The same for rmsnorm_linear_swiglu."""
    fixed = _fixed(workload)

    def arguments(
        outputs: tuple[Tensor, ...], x: Tensor, norm: Tensor, w: Tensor, eps: float, constant_weights: bool
    ) -> tuple[Any, ...]:
        return outputs[0], x, norm, w, float(eps), *fixed

    return _launch(skinny_gated_kernel, workload, config, 2 * workload.dim("n"), arguments)
