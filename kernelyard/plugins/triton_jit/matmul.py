"""matmul in Triton, by pointers: any strides, any sizes, tensor cores where the dtype has them.

tile    a program computes a tile of the result; its sums stand in registers, tiles of a and b arrive `num_stages` ahead. Programs walk in
        groups of rows, so that those at work together share tiles of b in L2.
split   k in parts, for results with fewer tiles than the GPU has multiprocessors: each part leaves its sums in float32, a second
        launch adds them in order, so that every run gives the same bits.

Bytes: each tile of a is read n / BN times, of b m / BM times, from L2 mostly; 2 m n k flops. Bound: the tensor cores from m about 256 on,
memory below. Where leading strides are no multiples of 16 bytes each element is loaded by itself, and no load is asynchronous.

Sources: Triton's tutorial 03 for grouped order; split-k as in cuBLAS.
"""

# A Triton function is typed by its compiler, not by mypy.
# mypy: disable-error-code="untyped-decorator, no-untyped-def"

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from kernelyard.plugins.triton_jit.ending import ended
from kernelyard.plugins.triton_jit.overlap import begin, overlaps
from kernelyard.registry.backend import TritonLaunch
from kernelyard.registry.spec import Config, TensorSpec, Workload

GROUP = 8
"""Rows of tiles that programs at work together come from."""


@triton.jit
def place(tile, m, n, BM: tl.constexpr, BN: tl.constexpr, GROUP: tl.constexpr):
    """Row and column of a tile in grouped order."""
    rows, columns = tl.cdiv(m, BM), tl.cdiv(n, BN)
    group = tile // (GROUP * columns)
    height = tl.minimum(rows - group * GROUP, GROUP)
    within = tile % (GROUP * columns)
    return group * GROUP + within % height, within // height


@triton.jit
def sums_of(
    a_ptr, b_ptr, row, column, first, last, m, b_n, a_end, b_end, a_row, a_k, b_k, b_column,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The product of rows of a and columns of b over k from `first` to `last`, float32.

    a has terms up to `a_end`, b up to `b_end` and columns up to `b_n`: limits of their own, as a copy with zeros behind its rows may
    be read in whole vectors, which a limit inside of one forbids.
    """
    k = first + tl.arange(0, BK)
    a_at = a_ptr + row.to(tl.int64)[:, None] * a_row + k.to(tl.int64)[None, :] * a_k
    b_at = b_ptr + k.to(tl.int64)[:, None] * b_k + column.to(tl.int64)[None, :] * b_column
    a_known, b_known = (row < m)[:, None], (column < b_n)[None, :]
    sums = tl.zeros((BM, BN), tl.float32)
    for start in range(first, last, BK):
        some = tl.arange(0, BK)
        a = tl.load(a_at, mask=a_known & (some < a_end - start)[None, :], other=0.0)
        b = tl.load(b_at, mask=(some < b_end - start)[:, None] & b_known, other=0.0)
        sums = tl.dot(a, b, sums, input_precision=PRECISION)
        a_at += BK * a_k
        b_at += BK * b_k
    return sums


@triton.jit
def tile_kernel(
    out_ptr, a_ptr, b_ptr, bias_ptr, residual_ptr, scale, m, n, k, b_n, a_end, b_end,
    a_batch, a_row, a_k, b_batch, b_k, b_column, r_batch, r_row, r_column,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr,
    ACTIVATION: tl.constexpr, PRECISION: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One tile."""
    begin(PDL)
    across, down = place(tl.program_id(0), m, n, BM, BN, GROUP)
    batch = tl.program_id(1).to(tl.int64)
    row, column = across * BM + tl.arange(0, BM), down * BN + tl.arange(0, BN)
    a_ptr, b_ptr = a_ptr + batch * a_batch, b_ptr + batch * b_batch
    sums = sums_of(a_ptr, b_ptr, row, column, 0, k, m, b_n, a_end, b_end, a_row, a_k, b_k, b_column, BM, BN, BK, PRECISION)
    known = (row < m)[:, None] & (column < n)[None, :]
    there = batch * r_batch + row.to(tl.int64)[:, None] * r_row + column.to(tl.int64)[None, :] * r_column
    sums = ended(sums, bias_ptr, residual_ptr, column[None, :], there, (column < n)[None, :], known, scale, ACTIVATION)
    at = (batch * m + row.to(tl.int64))[:, None] * n + column[None, :]
    tl.store(out_ptr + at, sums.to(out_ptr.dtype.element_ty), mask=known)


@triton.jit
def part_kernel(
    parts_ptr, a_ptr, b_ptr, m, n, k, each, a_batch, a_row, a_k, b_batch, b_k, b_column,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr, PRECISION: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One tile over one part of k, which is a multiple of BK long: its sums as they are."""
    begin(PDL)
    across, down = place(tl.program_id(0), m, n, BM, BN, GROUP)
    part, batch = tl.program_id(1), tl.program_id(2).to(tl.int64)
    row, column = across * BM + tl.arange(0, BM), down * BN + tl.arange(0, BN)
    a_ptr, b_ptr = a_ptr + batch * a_batch, b_ptr + batch * b_batch
    first = part * each
    last = tl.minimum(first + each, k)
    sums = sums_of(a_ptr, b_ptr, row, column, first, last, m, n, last, last, a_row, a_k, b_k, b_column, BM, BN, BK, PRECISION)
    at = ((part * tl.num_programs(2) + batch) * m + row.to(tl.int64))[:, None] * n + column[None, :]
    tl.store(parts_ptr + at, sums, mask=(row < m)[:, None] & (column < n)[None, :])


@triton.jit
def add_kernel(
    out_ptr, parts_ptr, bias_ptr, residual_ptr, scale, m, n, r_batch, r_row, r_column,
    PARTS: tl.constexpr, BLOCK: tl.constexpr, ACTIVATION: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """The parts of a piece of a row added in order, and what follows."""
    begin(PDL)
    pieces = tl.cdiv(n, BLOCK)
    row, batch = (tl.program_id(0) // pieces).to(tl.int64), tl.program_id(1).to(tl.int64)
    column = tl.program_id(0) % pieces * BLOCK + tl.arange(0, BLOCK)
    known = column < n
    at = (batch * m + row) * n + column
    step = tl.num_programs(1).to(tl.int64) * m * n
    sums = tl.zeros((BLOCK,), tl.float32)
    for part in tl.static_range(PARTS):
        sums += tl.load(parts_ptr + part * step + at, mask=known, other=0.0)
    there = batch * r_batch + row * r_row + column.to(tl.int64) * r_column
    sums = ended(sums, bias_ptr, residual_ptr, column, there, known, known, scale, ACTIVATION)
    tl.store(out_ptr + at, sums.to(out_ptr.dtype.element_ty), mask=known)


def strides(workload: Workload, name: str) -> tuple[int, int, int]:
    """Elements between two matrices of a batch, two rows, two columns; 0s for a tensor that is not given."""
    if not workload.has(name):
        return 0, 0, 0
    spec = workload[name]
    row, column = spec.strides[-2:]
    return spec.strides[0] if len(spec.shape) == 3 else 0, row, column


def sizes(workload: Workload) -> tuple[int, int, int, int]:
    """batch, m, n, k."""
    return workload.dim("batch"), workload.dim("m"), workload.dim("n"), workload.dim("k")


def _blocks(config: Config) -> dict[str, Any]:
    return {"BM": int(config["block_m"]), "BN": int(config["block_n"]), "BK": int(config["block_k"]), "GROUP": GROUP}


def precision(workload: Workload) -> str:
    """Triton's word for how float32 factors are multiplied; others have but one way."""
    return str(workload.static("precision"))


def tile(workload: Workload, config: Config) -> TritonLaunch:
    """One launch."""
    return within(workload, config, workload.dim("n"), workload.dim("k"), workload.dim("k"))


def within(workload: Workload, config: Config, b_n: int, a_end: int, b_end: int) -> TritonLaunch:
    """The same where a and b hold zeros beyond their sizes, up to these."""
    batch, m, n, k = sizes(workload)
    fixed = (m, n, k, b_n, a_end, b_end, *strides(workload, "a"), *strides(workload, "b"), *strides(workload, "residual"))
    blocks = _blocks(config)
    constants = {**blocks, "ACTIVATION": workload.static("activation"), "PRECISION": precision(workload), "PDL": overlaps(config)}

    def arguments(
        outputs: tuple[Tensor, ...], a: Tensor, b: Tensor, bias: Tensor | None, residual: Tensor | None, scale: float, *names: str
    ) -> tuple[Any, ...]:
        return outputs[0], a, b, bias, residual, scale, *fixed

    tiles = triton.cdiv(m, blocks["BM"]) * triton.cdiv(n, blocks["BN"])
    return TritonLaunch(
        tile_kernel, (tiles, batch, 1), arguments, constants,
        num_warps=int(config["num_warps"]), num_stages=int(config["num_stages"]), pdl=overlaps(config),
    )  # fmt: skip


def split(workload: Workload, config: Config) -> TritonLaunch:
    """Two launches and a workspace of (parts, batch, m, n)."""
    batch, m, n, k = sizes(workload)
    blocks, parts, pdl = _blocks(config), int(config["parts"]), overlaps(config)
    each = triton.cdiv(triton.cdiv(k, parts), blocks["BK"]) * blocks["BK"]
    fixed = (m, n, k, each, *strides(workload, "a"), *strides(workload, "b"))
    after = (m, n, *strides(workload, "residual"))
    block = min(triton.next_power_of_2(max(n, 1)), 1024)

    def add(
        outputs: tuple[Tensor, ...], a: Tensor, b: Tensor, bias: Tensor | None, residual: Tensor | None, scale: float, *names: str
    ) -> tuple[Any, ...]:
        return outputs[0], outputs[1], bias, residual, scale, *after

    def arguments(outputs: tuple[Tensor, ...], a: Tensor, b: Tensor, *rest: Any) -> tuple[Any, ...]:
        return outputs[1], a, b, *fixed

    second = TritonLaunch(
        add_kernel, (m * triton.cdiv(n, block), batch, 1), add,
        {"PARTS": parts, "BLOCK": block, "ACTIVATION": workload.static("activation"), "PDL": pdl}, num_warps=4, pdl=pdl,
    )  # fmt: skip
    tiles = triton.cdiv(m, blocks["BM"]) * triton.cdiv(n, blocks["BN"])
    return TritonLaunch(
        part_kernel, (tiles, parts, batch), arguments, {**blocks, "PRECISION": precision(workload), "PDL": pdl},
        num_warps=int(config["num_warps"]), num_stages=int(config["num_stages"]), pdl=pdl,
        workspace=(TensorSpec((parts, batch, m, n), "float32"),), then=second,
    )  # fmt: skip
