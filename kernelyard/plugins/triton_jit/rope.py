"""rope in Triton: each pair (p, q) of a head becomes (p c - q s, q c + p s), in float32, rounded once.

Bytes: x once, y once; cosines, sines and a position once for all heads of a token. 3 flops an element: bound by memory.

tile    a program takes (tokens, heads, dim / 2) pairs: cosines and sines are loaded once for its heads. Style 'half': both halves as
        tiles of their own, contiguous for dim / 2 elements. Style 'interleaved': the tile whole, 16 bytes a thread, split in registers.

In place: a program has read both halves of its heads before it writes either, and no other program reads them.
The tables' row stride is read off them at each call: how long they are is no part of a workload, and so neither is a gap between rows.
"""

# A Triton function is typed by its compiler, not by mypy.
# mypy: disable-error-code="untyped-decorator, no-untyped-def"

import math
from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from kernelyard.plugins.triton_jit.launch import policies
from kernelyard.plugins.triton_jit.overlap import begin, overlaps
from kernelyard.plugins.triton_jit.pointwise_defaults import half_block
from kernelyard.registry.backend import TritonLaunch
from kernelyard.registry.spec import Config, Workload


@triton.jit(do_not_specialize=["tokens", "cos_stride", "sin_stride"])
def tile_kernel(
    y_ptr, x_ptr, cos_ptr, sin_ptr, positions_ptr, cos_stride, sin_stride, tokens, heads, half_units, token_units, head_units,
    UNIT: tl.constexpr, TOKENS: tl.constexpr, HEADS: tl.constexpr, HALF: tl.constexpr,
    INTERLEAVED: tl.constexpr, INVERSE: tl.constexpr, LOAD: tl.constexpr, STORE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One tile of pairs."""
    begin(PDL)
    half = half_units * UNIT
    across = tl.cdiv(heads, HEADS)
    token = tl.program_id(0) // across * TOKENS + tl.arange(0, TOKENS)
    head = (tl.program_id(0) % across * HEADS + tl.arange(0, HEADS))[None, :, None]
    pair = tl.arange(0, HALF)
    position = tl.load(positions_ptr + token, mask=token < tokens, other=0).to(tl.int64)[:, None]
    known = (token < tokens)[:, None] & (pair < half)[None, :]
    c = tl.load(cos_ptr + position * cos_stride + pair[None, :], mask=known, other=0.0).to(tl.float32)[:, None, :]
    s = tl.load(sin_ptr + position * sin_stride + pair[None, :], mask=known, other=0.0).to(tl.float32)[:, None, :]
    if INVERSE:
        s = -s
    token = token[:, None, None]
    x_head = x_ptr + token.to(tl.int64) * (token_units * UNIT) + head.to(tl.int64) * (head_units * UNIT)
    y_head = y_ptr + (token.to(tl.int64) * heads + head) * (2 * half)
    there = (token < tokens) & (head < heads)
    DTYPE: tl.constexpr = y_ptr.dtype.element_ty
    if INTERLEAVED:
        element = tl.arange(0, 2 * HALF)[None, None, :]
        inside = there & (element < 2 * half)
        x = tl.load(x_head + element, mask=inside, other=0.0, eviction_policy=LOAD).to(tl.float32)
        p, q = tl.split(tl.reshape(x, (TOKENS, HEADS, HALF, 2)))
        y = tl.reshape(tl.join((p * c - q * s).to(DTYPE), (q * c + p * s).to(DTYPE)), (TOKENS, HEADS, 2 * HALF))
        tl.store(y_head + element, y, mask=inside, eviction_policy=STORE)
    else:
        pair = pair[None, None, :]
        inside = there & (pair < half)
        p = tl.load(x_head + pair, mask=inside, other=0.0, eviction_policy=LOAD).to(tl.float32)
        q = tl.load(x_head + half + pair, mask=inside, other=0.0, eviction_policy=LOAD).to(tl.float32)
        tl.store(y_head + pair, (p * c - q * s).to(DTYPE), mask=inside, eviction_policy=STORE)
        tl.store(y_head + half + pair, (q * c + p * s).to(DTYPE), mask=inside, eviction_policy=STORE)


def tile(workload: Workload, config: Config) -> TritonLaunch:
    """One program a tile of tokens and heads."""
    tokens, heads, half = workload.dim("tokens"), workload.dim("heads"), workload.dim("dim") // 2
    token_stride, head_stride = strides(workload)
    unit = math.gcd(half, token_stride, head_stride, 16)
    sizes = (tokens, heads, half // unit, token_stride // unit, head_stride // unit)
    load, store, _ = policies(config)
    constants = {
        "UNIT": unit, "TOKENS": int(config["tokens_per_program"]), "HEADS": int(config["heads_per_program"]), "HALF": half_block(workload),
        "INTERLEAVED": workload.static("style") == "interleaved", "INVERSE": bool(workload.static("inverse")),
        "LOAD": load, "STORE": store, "PDL": overlaps(config),
    }  # fmt: skip

    def arguments(
        outputs: tuple[Tensor, ...], x: Tensor, cos: Tensor, sin: Tensor, positions: Tensor, style: str, inverse: bool
    ) -> tuple[Any, ...]:
        return outputs[0], x, cos, sin, positions, cos.stride(0), sin.stride(0), *sizes

    grid = triton.cdiv(tokens, constants["TOKENS"]) * triton.cdiv(heads, constants["HEADS"])
    return TritonLaunch(tile_kernel, (grid, 1, 1), arguments, constants, num_warps=int(config["num_warps"]), pdl=overlaps(config))


def strides(workload: Workload) -> tuple[int, int]:
    """Elements between two tokens and between two heads of x; where there is only one, as if it were contiguous."""
    spec = workload["x"]
    return (spec.strides[0], spec.strides[1]) if len(spec.shape) == 3 else (workload.dim("heads") * spec.strides[0], spec.strides[0])
