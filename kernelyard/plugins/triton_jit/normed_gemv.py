"""A norm and the linear layers behind it for one row to four, in Triton: rmsnorm_linear and rmsnorm_linear_swiglu without tensor cores.

gemv    a program has a few rows of the weight and normalises each row of x for itself: x is 4 to 8 KB from L2 beside 16 KB and more of
        the weight, and a kernel for the norm alone costs 2 us.
gated   the same for gate and up.

WHOLE: all of k is one chunk. Every load of the weight is then asked for before x is, and where the caller calls weights constant before
the kernel ahead has ended (EARLY): the memory works while the norm is being waited for. Else k goes in chunks, the next one asked for
before the one at hand is used, after a first sweep over x for its mean square.

Bytes: the weight once, x and norm once a program, from L2. Bound: memory; see `gemv` for how much must be in flight.
Roundings are Llama's: x / rms to x's dtype, times norm to x's dtype, then float32.
As one of five kernels a layer this form took 0.769 ms a decode step of 1B and 3.91 of 8B (H200, bf16; hopper notes). Alone not measured.
"""

# A Triton function is typed by its compiler, not by mypy.
# mypy: disable-error-code="untyped-decorator, no-untyped-def"

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from kernelyard.plugins.triton_jit.ending import sigmoid
from kernelyard.plugins.triton_jit.overlap import overlaps, signal, wait
from kernelyard.registry.backend import TritonLaunch
from kernelyard.registry.spec import Config, Workload


@triton.jit
def factor(x, norm, rms_inverse):
    """x normalised and weighed as Llama rounds it, in float32; x as loaded, norm in float32."""
    return ((x.to(tl.float32) * rms_inverse).to(x.dtype).to(tl.float32) * norm).to(x.dtype).to(tl.float32)


@triton.jit
def rms_inverse(x_ptr, k, eps, CHUNK: tl.constexpr):
    """1 / sqrt(mean square + eps) of a row, chunk by chunk."""
    squares = tl.zeros((CHUNK,), tl.float32)
    for start in range(0, k, CHUNK):
        some = start + tl.arange(0, CHUNK)
        x = tl.load(x_ptr + some, mask=some < k, other=0.0).to(tl.float32)
        squares += x * x
    return tl.rsqrt(tl.sum(squares, 0) / k + eps)


@triton.jit
def chunk_of(at, known, some, k, LOAD: tl.constexpr):
    """(WEIGHTS, CHUNK) of the weight, whose rows start `at`; zeros past its ends."""
    return tl.load(at[:, None] + some[None, :], mask=known[:, None] & (some < k)[None, :], other=0.0, eviction_policy=LOAD)


@triton.jit
def whole_factor(x_ptr, norm, k, eps, CHUNK: tl.constexpr):
    """(CHUNK,) one row of x normalised, all of it."""
    some = tl.arange(0, CHUNK)
    x = tl.load(x_ptr + some, mask=some < k, other=0.0)
    wide = x.to(tl.float32)
    return factor(x, norm, tl.rsqrt(tl.sum(wide * wide, 0) / k + eps))


@triton.jit
def dots(x_ptr, norm_ptr, at, w, known, inverse, k, WEIGHTS: tl.constexpr, CHUNK: tl.constexpr, LOAD: tl.constexpr):
    """(WEIGHTS,) sums of rows of the weight with one row of x in chunks, the first of which is here."""
    sums = tl.zeros((WEIGHTS,), tl.float32)
    for start in range(0, k, CHUNK):
        some = start + tl.arange(0, CHUNK)
        following = chunk_of(at, known, some + CHUNK, k, LOAD)
        x = tl.load(x_ptr + some, mask=some < k, other=0.0)
        norm = tl.load(norm_ptr + some, mask=some < k, other=0.0).to(tl.float32)
        sums += tl.sum(w.to(tl.float32) * factor(x, norm, inverse)[None, :], 1)
        w = following
    return sums


@triton.jit
def gemv_kernel(
    out_ptr, x_ptr, norm_ptr, w_ptr, bias_ptr, eps, n, k, x_row, w_row,
    M: tl.constexpr, WEIGHTS: tl.constexpr, CHUNK: tl.constexpr, WHOLE: tl.constexpr, LOAD: tl.constexpr, EARLY: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """A few columns of the result, all of its rows."""
    signal(PDL)
    if not EARLY:
        wait(PDL)
    column = tl.program_id(0) * WEIGHTS + tl.arange(0, WEIGHTS)
    some, known = tl.arange(0, CHUNK), column < n
    at = w_ptr + column.to(tl.int64) * w_row
    w = chunk_of(at, known, some, k, LOAD)
    norm = tl.load(norm_ptr + some, mask=some < k, other=0.0).to(tl.float32)
    bias = tl.zeros((WEIGHTS,), tl.float32)
    if bias_ptr is not None:
        bias = tl.load(bias_ptr + column, mask=known, other=0.0).to(tl.float32)
    if EARLY:
        wait(PDL)
    for m in tl.static_range(M):
        row_ptr = x_ptr + m * x_row
        if WHOLE:
            sums = tl.sum(w.to(tl.float32) * whole_factor(row_ptr, norm, k, eps, CHUNK)[None, :], 1)
        else:
            sums = dots(row_ptr, norm_ptr, at, w, known, rms_inverse(row_ptr, k, eps, CHUNK), k, WEIGHTS, CHUNK, LOAD)
        tl.store(out_ptr + m * tl.cast(n, tl.int64) + column, (sums + bias).to(out_ptr.dtype.element_ty), mask=known)


@triton.jit
def gated_kernel(
    out_ptr, x_ptr, norm_ptr, w_ptr, eps, n, k, x_row, w_row,
    M: tl.constexpr, WEIGHTS: tl.constexpr, CHUNK: tl.constexpr, WHOLE: tl.constexpr, LOAD: tl.constexpr, EARLY: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """silu(gate) * up for a few columns, all rows."""
    signal(PDL)
    if not EARLY:
        wait(PDL)
    column = tl.program_id(0) * WEIGHTS + tl.arange(0, WEIGHTS)
    some, known = tl.arange(0, CHUNK), column < n
    gate_at = w_ptr + column.to(tl.int64) * w_row
    up_at = gate_at + tl.cast(n, tl.int64) * w_row  # an n of 1 is a plain number here
    gate_w, up_w = chunk_of(gate_at, known, some, k, LOAD), chunk_of(up_at, known, some, k, LOAD)
    norm = tl.load(norm_ptr + some, mask=some < k, other=0.0).to(tl.float32)
    if EARLY:
        wait(PDL)
    for m in tl.static_range(M):
        row_ptr = x_ptr + m * x_row
        if WHOLE:
            x = whole_factor(row_ptr, norm, k, eps, CHUNK)[None, :]
            gate, up = tl.sum(gate_w.to(tl.float32) * x, 1), tl.sum(up_w.to(tl.float32) * x, 1)
        else:
            inverse = rms_inverse(row_ptr, k, eps, CHUNK)
            gate = dots(row_ptr, norm_ptr, gate_at, gate_w, known, inverse, k, WEIGHTS, CHUNK, LOAD)
            up = dots(row_ptr, norm_ptr, up_at, up_w, known, inverse, k, WEIGHTS, CHUNK, LOAD)
        y = gate * sigmoid(gate) * up
        tl.store(out_ptr + m * tl.cast(n, tl.int64) + column, y.to(out_ptr.dtype.element_ty), mask=known)


def _constants(workload: Workload, config: Config) -> dict[str, Any]:
    chunk = int(config["chunk"])
    return {
        "M": workload.dim("rows"), "WEIGHTS": int(config["weights"]), "CHUNK": chunk, "WHOLE": chunk >= workload.dim("k"),
        "LOAD": "evict_first" if config["hint"] == "load" else "", "EARLY": bool(workload.static("constant_weights")),
        "PDL": overlaps(config),
    }  # fmt: skip


def _fixed(workload: Workload) -> tuple[int, int, int, int]:
    """n, k, and elements between rows of x and of w; where there is only one row, as if it were contiguous."""
    rows, n, k = (workload.dim(name) for name in ("rows", "n", "k"))
    x, w = workload["x"], workload["w"]
    return n, k, x.strides[-2] if rows > 1 and len(x.shape) > 1 else k, w.strides[0] if w.shape[0] > 1 else k


def _launch(function: Any, workload: Workload, config: Config, arguments: Any) -> TritonLaunch:
    constants = _constants(workload, config)
    grid = triton.cdiv(workload.dim("n"), constants["WEIGHTS"]) if workload.dim("rows") else 0
    return TritonLaunch(function, (grid, 1, 1), arguments, constants, num_warps=int(config["num_warps"]), pdl=overlaps(config))


def gemv(workload: Workload, config: Config) -> TritonLaunch:
    """One program a few columns of the result."""
    fixed = _fixed(workload)

    def arguments(
        outputs: tuple[Tensor, ...], x: Tensor, norm: Tensor, w: Tensor, bias: Tensor | None, eps: float, constant_weights: bool
    ) -> tuple[Any, ...]:
        return outputs[0], x, norm, w, bias, float(eps), *fixed

    return _launch(gemv_kernel, workload, config, arguments)


def gated(workload: Workload, config: Config) -> TritonLaunch:
    """The same for rmsnorm_linear_swiglu."""
    fixed = _fixed(workload)

    def arguments(
        outputs: tuple[Tensor, ...], x: Tensor, norm: Tensor, w: Tensor, eps: float, constant_weights: bool
    ) -> tuple[Any, ...]:
        return outputs[0], x, norm, w, float(eps), *fixed

    return _launch(gated_kernel, workload, config, arguments)
