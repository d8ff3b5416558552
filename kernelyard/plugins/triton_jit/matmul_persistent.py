"""matmul in Triton by the tensor memory accelerator: factors come as descriptors, a fixed grid of programs walks over tiles of the result.

persistent  one program a multiprocessor. The loops over tiles and over k are one, so that the next tile's factors are on their way while
            this one's sums are rounded and written. Tiles of a and b arrive by one instruction each, `num_stages` ahead, with zeros beyond
            their sizes; tensor cores turn a factor of the other major order. Programs walk in groups of rows, as in `tile`.

Bytes and flops are those of `tile`. Bound: tensor cores. The result is written by halves of its columns, from registers ("direct") or by
descriptor from shared memory ("halves"), or by descriptor as a "whole", or from registers by "quarters". Halves take half of the room,
and of the registers for what follows the product: with bias and gelu 128 by 256 as a whole spills 96 bytes a thread, 576 with a residual
too. Only tensors whose lines start at multiples of 16 bytes have descriptors; sizes are any. A result of other lines is written element by
element, each with an address and a condition: by halves that spills 376 bytes, by quarters none.

Source: Triton's tutorial 09. A plain form of it on an H200 at 128 by 256 by 64, 8 warps and 3 stages: 784 TFLOP/s at 4096 cubed beside 798
of cuBLAS, 763 with two loops; whole by descriptor and by pointer 710 and 697 at 8192 cubed, 687 and 705 at (8192, 14336, 4096). 256 by
128 was 5 to 8% slower, and Triton's own warp specialisation did not return.
"""

# A Triton function is typed by its compiler, not by mypy.
# mypy: disable-error-code="untyped-decorator, no-untyped-def"

from dataclasses import dataclass
from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from kernelyard.plugins.triton_jit.ending import ended
from kernelyard.plugins.triton_jit.launch import sm_count
from kernelyard.plugins.triton_jit.lines import Lines, lines
from kernelyard.plugins.triton_jit.matmul import GROUP, place, precision, strides
from kernelyard.plugins.triton_jit.overlap import begin, overlaps
from kernelyard.registry.backend import Descriptor, TritonLaunch
from kernelyard.registry.spec import Config, TensorSpec, Workload


@triton.jit
def persistent_kernel(
    a, b, out, bias_ptr, residual_ptr, scale, m, n, k, r_row, r_column,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr, A_TURNED: tl.constexpr, B_TURNED: tl.constexpr,
    STORE: tl.constexpr, ACTIVATION: tl.constexpr, PRECISION: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Every tile whose number is this program's, plus multiples of the grid. k is 1 at least."""
    begin(PDL)
    tiles, steps = tl.cdiv(m, BM) * tl.cdiv(n, BN), tl.cdiv(k, BK)
    for tile in tl.range(tl.program_id(0), tiles, tl.num_programs(0), flatten=True):
        across, down = place(tile, m, n, BM, BN, GROUP)
        row, column = across * BM, down * BN
        sums = tl.zeros((BM, BN), tl.float32)
        for step in range(steps):
            x = a.load([step * BK, row]).T if A_TURNED else a.load([row, step * BK])
            y = b.load([column, step * BK]).T if B_TURNED else b.load([step * BK, column])
            sums = tl.dot(x, y, sums, input_precision=PRECISION)
        if STORE == "whole":
            leave(sums, out, bias_ptr, residual_ptr, scale, row, column, m, n, r_row, r_column, BM, BN, STORE, ACTIVATION)
        elif STORE == "quarters":
            left, right = halves(sums, BM, BN)
            leave_halves(left, out, bias_ptr, residual_ptr, scale, row, column, m, n, r_row, r_column, BM, BN // 2, STORE, ACTIVATION)
            column += BN // 2
            leave_halves(right, out, bias_ptr, residual_ptr, scale, row, column, m, n, r_row, r_column, BM, BN // 2, STORE, ACTIVATION)
        else:
            leave_halves(sums, out, bias_ptr, residual_ptr, scale, row, column, m, n, r_row, r_column, BM, BN, STORE, ACTIVATION)


@triton.jit
def halves(sums, BM: tl.constexpr, BN: tl.constexpr):
    """The left half of the columns and the right one."""
    return tl.split(tl.permute(tl.reshape(sums, (BM, 2, BN // 2)), (0, 2, 1)))


@triton.jit
def leave_halves(
    sums, out, bias_ptr, residual_ptr, scale, row, column, m, n, r_row, r_column,
    BM: tl.constexpr, BN: tl.constexpr, STORE: tl.constexpr, ACTIVATION: tl.constexpr,
):  # fmt: skip
    """One half of the columns after the other: the second's registers are free when the first is written."""
    left, right = halves(sums, BM, BN)
    leave(left, out, bias_ptr, residual_ptr, scale, row, column, m, n, r_row, r_column, BM, BN // 2, STORE, ACTIVATION)
    leave(right, out, bias_ptr, residual_ptr, scale, row, column + BN // 2, m, n, r_row, r_column, BM, BN // 2, STORE, ACTIVATION)


@triton.jit
def leave(
    sums, out, bias_ptr, residual_ptr, scale, row, column, m, n, r_row, r_column,
    BM: tl.constexpr, BN: tl.constexpr, STORE: tl.constexpr, ACTIVATION: tl.constexpr,
):  # fmt: skip
    """What follows the product, rounded and written from (row, column) on. Offsets are in 32 bits beside one address: 64 spill."""
    down, across = tl.arange(0, BM)[:, None], tl.arange(0, BN)[None, :]
    known_n = column + across < n
    known = (row + down < m) & known_n
    if residual_ptr is not None:
        residual_ptr += tl.cast(row, tl.int64) * r_row + tl.cast(column, tl.int64) * r_column
    sums = ended(sums, bias_ptr, residual_ptr, column + across, down * r_row + across * r_column, known_n, known, scale, ACTIVATION)
    if STORE == "direct" or STORE == "quarters":
        tl.store(out + (tl.cast(row, tl.int64) * n + column) + (down * n + across), sums.to(out.dtype.element_ty), mask=known)
    else:
        out.store([row, column], sums.to(out.dtype))


@dataclass(frozen=True, slots=True)
class Blocks:
    """A config's tile."""

    m: int
    n: int
    k: int


def persistent(workload: Workload, config: Config) -> TritonLaunch:
    """One launch of as many programs as the GPU has multiprocessors, or as there are tiles."""
    m, n, k = (workload.dim(name) for name in "mnk")
    a, b, out = _seen(workload["a"]), _seen(workload["b"]), _seen(TensorSpec((m, n), workload.dtype))
    store = str(config["store"])
    of = Blocks(int(config["block_m"]), int(config["block_n"]), int(config["block_k"]))
    stored_n = of.n // 2 if store == "halves" else of.n
    fixed = (m, n, k, *strides(workload, "residual")[1:])

    def arguments(
        outputs: tuple[Tensor, ...], x: Tensor, y: Tensor, bias: Tensor | None, residual: Tensor | None, scale: float, *names: str
    ) -> tuple[Any, ...]:
        left, right = _described(x, a, of.m, of.k), _described(y, b, of.k, of.n)
        to = outputs[0] if store in ("direct", "quarters") else _described(outputs[0], out, of.m, stored_n)
        return left, right, to, bias, residual, scale, *fixed

    constants = {
        "BM": of.m, "BN": of.n, "BK": of.k, "GROUP": GROUP, "A_TURNED": a.turned, "B_TURNED": b.turned, "STORE": store,
        "ACTIVATION": workload.static("activation"), "PRECISION": precision(workload), "PDL": overlaps(config),
    }  # fmt: skip
    programs = min(sm_count(workload), triton.cdiv(m, of.m) * triton.cdiv(n, of.n))
    return TritonLaunch(
        persistent_kernel, (programs, 1, 1), arguments, constants,
        num_warps=int(config["num_warps"]), num_stages=int(config["num_stages"]), pdl=overlaps(config),
    )  # fmt: skip


def _seen(spec: TensorSpec) -> Lines:
    """Of a matrix that the kernel's support, or a copy, has made sure of. An unaligned result is written without a descriptor."""
    found = lines(spec)
    return found if found is not None else Lines(False, spec.shape[0], spec.shape[1], 0)


def _described(tensor: Tensor, seen: Lines, rows: int, columns: int) -> Descriptor:
    block = (columns, rows) if seen.turned else (rows, columns)
    return Descriptor(tensor, (seen.count, seen.length), (seen.pitch, 1), block)
