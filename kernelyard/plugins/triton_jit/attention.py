"""attention in Triton by the online softmax: see kernelyard.contracts.online_softmax for the algorithm in plain torch.

twoloop  a program has a block of queries of one head and walks over the keys they see: blocks that all of them see without a mask, then
         those on the diagonal, or at the end, with one. Scores stay in registers, so memory grows with q_len + kv_len. Heads come in
         groups whose keys and values L2 holds together; in a group blocks of the longest rows come first. The order is that of
         `gluon_ws.order`, which says what it gained there; of this kernel it is not measured.

Work: 4 * head_dim flops a query and key seen. Bound: tensor cores and exponentials in turn, which one group of threads does not overlap: a
plain Triton kernel reached 85% of cuDNN on an H200. 64 by 64 tiles with 4 warps beat 128 by 128 with 8 up to 4096 keys, and lose at 16384.

Exponentials are powers of two, scores times log2(e); a row that has seen nothing scales by 0. Weights are rounded to v's dtype for their
product. Source: Dao, "FlashAttention-2" (2023).
"""

# A Triton function is typed by its compiler, not by mypy.
# mypy: disable-error-code="untyped-decorator, no-untyped-def"

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from kernelyard.plugins.triton_jit.overlap import begin, overlaps
from kernelyard.registry.backend import TritonLaunch
from kernelyard.registry.spec import DTYPE_BYTES, Config, Workload

LOG2_E = 1.4426950408889634
NEAR = 2**31 - 257
"""Elements of a block of keys or values whose offsets are 32-bit, the widest row's own among them; of others they are 64-bit."""
LN_2: tl.constexpr = tl.constexpr(0.6931471805599453)


@triton.jit
def scores_of(q, k_at, key, kv_len, dim_known, scale, CHECK: tl.constexpr, WHOLE: tl.constexpr):
    """Scores of a block of keys, times log2(e), in float32; -inf beyond the last key where that is to be checked."""
    if CHECK:
        k = tl.load(k_at, mask=(key < kv_len)[None, :] & dim_known[:, None], other=0.0)
    elif WHOLE:
        k = tl.load(k_at)
    else:
        k = tl.load(k_at, mask=dim_known[:, None], other=0.0)
    scores = tl.dot(q, k, input_precision="ieee") * scale
    if CHECK:
        scores = tl.where((key < kv_len)[None, :], scores, float("-inf"))
    return scores


@triton.jit
def folded(acc, largest, total, scores, v):
    """The state with a block of scores and values folded in."""
    most = tl.maximum(largest, tl.max(scores, 1))
    base = tl.where(most == float("-inf"), 0.0, most)
    weights = tl.exp2(scores - base[:, None])
    keep = tl.exp2(largest - base)
    total = total * keep + tl.sum(weights, 1)
    acc = tl.dot(weights.to(v.dtype), v, acc * keep[:, None], input_precision="ieee")
    return acc, most, total


@triton.jit
def turn(number, heads, blocks, at_once):
    """Head, counted over all sequences, and block of queries of a program: `at_once` heads after the other, last blocks first."""
    first = number // (at_once * blocks) * at_once
    those = tl.minimum(heads - first, at_once)
    within = number % (at_once * blocks)
    return first + within % those, blocks - 1 - within // those


@triton.jit
def twoloop_kernel(
    out_ptr, lse_ptr, q_ptr, k_ptr, v_ptr, scale, q_heads, sharing, q_len, kv_len, heads, blocks, at_once,
    q_batch, q_head, q_row, k_batch, k_head, k_row, v_batch, v_head, v_row,
    BM: tl.constexpr, BN: tl.constexpr, DIM: tl.constexpr, BLOCK_DIM: tl.constexpr,
    FAR: tl.constexpr, CAUSAL: tl.constexpr, LSE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """A block of queries of one head."""
    begin(PDL)
    if FAR:
        k_row, v_row = tl.cast(k_row, tl.int64), tl.cast(v_row, tl.int64)
    number, block = turn(tl.program_id(0), heads, blocks, at_once)
    head, batch = number % q_heads, (number // q_heads).to(tl.int64)
    shared = (head // sharing).to(tl.int64)
    row, dim = block * BM + tl.arange(0, BM), tl.arange(0, BLOCK_DIM)
    some = tl.arange(0, BN)
    WHOLE: tl.constexpr = DIM == BLOCK_DIM
    dim_known = dim < DIM
    known = (row < q_len)[:, None] & dim_known[None, :]
    q_at = q_ptr + batch * q_batch + head.to(tl.int64) * q_head + row.to(tl.int64)[:, None] * q_row + dim[None, :]
    q = tl.load(q_at, mask=known, other=0.0)
    k_ptr += batch * k_batch + shared * k_head
    v_ptr += batch * v_batch + shared * v_head
    k_in, v_in = some[None, :] * k_row + dim[:, None], some[:, None] * v_row + dim[None, :]
    ahead = kv_len - q_len
    last = kv_len
    free = kv_len // BN * BN
    if CAUSAL:
        last = tl.maximum(tl.minimum(block * BM + BM + ahead, kv_len), 0)
        free = tl.maximum(tl.minimum(block * BM + 1 + ahead, kv_len), 0) // BN * BN
    largest = tl.full((BM,), float("-inf"), tl.float32)
    total = tl.zeros((BM,), tl.float32)
    acc = tl.zeros((BM, BLOCK_DIM), tl.float32)
    for start in range(0, free, BN):
        scores = scores_of(q, k_ptr + k_in, start + some, kv_len, dim_known, scale, False, WHOLE)
        v = tl.load(v_ptr + v_in) if WHOLE else tl.load(v_ptr + v_in, mask=dim_known[None, :], other=0.0)
        acc, largest, total = folded(acc, largest, total, scores, v)
        k_ptr += BN * k_row
        v_ptr += BN * v_row
    for start in range(free, last, BN):
        key = start + some
        scores = scores_of(q, k_ptr + k_in, key, kv_len, dim_known, scale, True, WHOLE)
        if CAUSAL:
            scores = tl.where(key[None, :] <= row[:, None] + ahead, scores, float("-inf"))
        v = tl.load(v_ptr + v_in, mask=(key < kv_len)[:, None] & dim_known[None, :], other=0.0)
        acc, largest, total = folded(acc, largest, total, scores, v)
        k_ptr += BN * k_row
        v_ptr += BN * v_row
    out = acc / tl.where(total == 0.0, 1.0, total)[:, None]
    at = ((batch * q_heads + head) * q_len + row.to(tl.int64)) * DIM
    tl.store(out_ptr + at[:, None] + dim[None, :], out.to(out_ptr.dtype.element_ty), mask=known)
    if LSE:
        lse = tl.where(total == 0.0, float("-inf"), (largest + tl.log2(total)) * LN_2)
        tl.store(lse_ptr + (batch * q_heads + head) * q_len + row, lse, mask=row < q_len)


def twoloop(workload: Workload, config: Config) -> TritonLaunch:
    """One launch: a program for each block of queries of each head of each sequence."""
    batch, q_heads, kv_heads, q_len, kv_len, dim = (size for _, size in workload.dims)
    strides = tuple(stride for name in "qkv" for stride in workload[name].strides[:3])
    block_q, block_kv, heads = int(config["block_q"]), int(config["block_kv"]), batch * q_heads
    blocks, sharing = triton.cdiv(q_len, block_q), q_heads // kv_heads
    at_once = min(heads_at_once(workload, int(config["group_mb"]) << 20), max(heads, 1))
    fixed = (q_heads, sharing, q_len, kv_len, heads, blocks, at_once, *strides)
    constants = {
        "BM": block_q, "BN": block_kv, "DIM": dim, "BLOCK_DIM": max(triton.next_power_of_2(dim), 16),
        "FAR": block_kv * max(workload[name].strides[2] for name in "kv") > NEAR,
        "CAUSAL": bool(workload.static("causal")), "LSE": bool(workload.static("return_lse")), "PDL": overlaps(config),
    }  # fmt: skip

    def arguments(
        outputs: tuple[Tensor, ...], q: Tensor, k: Tensor, v: Tensor, scale: float | None, causal: bool, return_lse: bool
    ) -> tuple[Any, ...]:
        factor = (dim**-0.5 if scale is None else scale) * LOG2_E
        return outputs[0], outputs[1], q, k, v, factor, *fixed

    return TritonLaunch(
        twoloop_kernel, (heads * blocks, 1, 1), arguments, constants,
        num_warps=int(config["num_warps"]), num_stages=int(config["num_stages"]), pdl=overlaps(config),
    )  # fmt: skip


def heads_at_once(workload: Workload, group_bytes: int) -> int:
    """Heads of queries whose keys and values are of so many bytes together; those that share one set of them at least."""
    _, q_heads, kv_heads, _, kv_len, dim = (size for _, size in workload.dims)
    return max(group_bytes // max(2 * kv_len * dim * DTYPE_BYTES[workload.dtype], 1), 1) * (q_heads // kv_heads)
