"""rope_attention_decode in Triton, one launch: rope, the cache's new token, split-KV attention, and a merge by whoever comes last.

split   a program has one KV head of a sequence, the query heads that share it (padded to 16 rows: the least that tensor cores take) and one
        part of the tokens. Every program rotates the query for itself, 1 KB from L2 and the cosines of one position. The first part's
        also rotates the key, puts key and value into the cache and starts with that token from registers, so that no program reads
        what another one writes: the others see the tokens before it.
merge   of more than one part each leaves maximum, sum and weighted values in float32 and counts itself; the last one, known by the count,
        reads all parts at once, (rows, parts, columns) as many columns as registers hold, and sets the count back. A loop over parts in
        one program waits for L2 once for each: with 64 parts a decode step took 1.07 ms where 16 to 32 took 0.956 (H200, 1B, 4096 tokens).

Bytes: each key and value once, and 8 + 4 D for a query head and part, which stay in L2. 4 D flops a query head and token: memory bound.
A part is a share of the sequence's own length, read on the GPU. Halves of a key are loaded apart, as they are rotated: the product with a
query is two products of D / 2 terms. Tokens that do not count are not loaded. Not measured in this form.
"""

# A Triton function is typed by its compiler, not by mypy.
# mypy: disable-error-code="untyped-decorator, no-untyped-def"

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from kernelyard.plugins.triton_jit.attention_decode import LOG2_E, finite
from kernelyard.plugins.triton_jit.overlap import begin, overlaps
from kernelyard.plugins.triton_jit.rope_attention_decode_space import columns_at_once, rows_of
from kernelyard.registry.backend import TritonLaunch
from kernelyard.registry.spec import Config, TensorSpec, Workload


@triton.jit
def rotated(at, cos, sin, half, known):
    """Both halves of heads that start `at`, in float32. (rows, HALF) pointers; cos and sin (1, HALF)."""
    p = tl.load(at, mask=known, other=0.0).to(tl.float32)
    q = tl.load(at + half, mask=known, other=0.0).to(tl.float32)
    return p * cos - q * sin, q * cos + p * sin


@triton.jit
def merged(
    out_ptr, top_ptr, sum_ptr, acc_ptr, length_at, first, capacity, group, head_dim,
    PARTS: tl.constexpr, GROUP: tl.constexpr, HEAD: tl.constexpr, AT_ONCE: tl.constexpr,
):  # fmt: skip
    """The results of the heads from `first` on out of all their parts, past L1, which may hold what was there before."""
    row, part = tl.arange(0, GROUP), tl.arange(0, PARTS)
    real = row < group
    length = tl.load(length_at)  # again: kept through the loop over tokens it was one register too many
    room = (length >= 0) & (length < capacity)
    slot = (first + row)[:, None] * PARTS + part[None, :]
    top = tl.load(top_ptr + slot, mask=real[:, None], other=float("-inf"), cache_modifier=".cg")
    total = tl.load(sum_ptr + slot, mask=real[:, None], other=0.0, cache_modifier=".cg")
    weight = tl.where(total == 0, 0.0, tl.exp2(top - finite(tl.max(top, 1))[:, None]))
    whole = tl.sum(weight * total, 1)
    share = weight / tl.where(whole == 0, 1.0, whole)[:, None]
    for start in tl.static_range(0, HEAD, AT_ONCE):
        column = start + tl.arange(0, AT_ONCE)
        there = (real[:, None] & (total != 0))[:, :, None]
        acc = tl.load(acc_ptr + slot[:, :, None] * HEAD + column[None, None, :], mask=there, other=0.0, cache_modifier=".cg")
        y = tl.sum(share[:, :, None] * acc, 1)
        known = real[:, None] & (column < head_dim)[None, :]
        at = out_ptr + (first + row)[:, None] * head_dim + column[None, :]
        tl.store(at, tl.where(room, y, float("nan")).to(out_ptr.dtype.element_ty), mask=known)


@triton.jit(do_not_specialize=["cos_row", "sin_row"])
def split_kernel(
    out_ptr, top_ptr, sum_ptr, acc_ptr, count_ptr, qkv_ptr, k_ptr, v_ptr, lengths_ptr, cos_ptr, sin_ptr, scale, cos_row, sin_row,
    capacity, kv_heads, group, head_dim, qkv_row, k_batch, k_head, k_token, v_batch, v_head, v_token, length_step,
    PARTS: tl.constexpr, ROWS: tl.constexpr, GROUP: tl.constexpr, TOKENS: tl.constexpr, HALF: tl.constexpr, HEAD: tl.constexpr,
    AT_ONCE: tl.constexpr, PRECISION: tl.constexpr, LOAD: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One part of one KV head; of one part, or as the last of several, the result."""
    begin(PDL)
    DTYPE: tl.constexpr = k_ptr.dtype.element_ty
    part = tl.program_id(0) % PARTS
    head = tl.program_id(0) // PARTS % kv_heads
    sequence = (tl.program_id(0) // PARTS // kv_heads).to(tl.int64)
    length = tl.load(lengths_ptr + sequence * length_step)
    room = (length >= 0) & (length < capacity)
    before = tl.where(room, length, 0)
    half = head_dim // 2
    row, pair, column = tl.arange(0, ROWS), tl.arange(0, HALF), tl.arange(0, HEAD)
    some, wide = (pair < half)[None, :], (column < head_dim)[None, :]
    cos = tl.load(cos_ptr + before.to(tl.int64) * cos_row + pair, mask=pair < half, other=0.0).to(tl.float32)[None, :]
    sin = tl.load(sin_ptr + before.to(tl.int64) * sin_row + pair, mask=pair < half, other=0.0).to(tl.float32)[None, :]
    real = row < group
    token_ptr = qkv_ptr + sequence * qkv_row
    q_at = token_ptr + (head * group + row)[:, None] * head_dim + pair[None, :]
    q_low, q_high = rotated(q_at, cos, sin, half, real[:, None] & some)
    q_low, q_high = q_low.to(DTYPE), q_high.to(DTYPE)
    k_base = k_ptr + sequence * k_batch + head.to(tl.int64) * k_head
    v_base = v_ptr + sequence * v_batch + head.to(tl.int64) * v_head

    top = tl.full((ROWS,), float("-inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    acc = tl.zeros((ROWS, HEAD), tl.float32)
    if part == 0:
        k_at = token_ptr + (kv_heads * group + head) * head_dim + pair[None, :]
        k_low, k_high = rotated(k_at, cos, sin, half, some)
        k_low, k_high = k_low.to(DTYPE), k_high.to(DTYPE)
        v_new = tl.load(token_ptr + (kv_heads * group + kv_heads + head) * head_dim + column[None, :], mask=wide, other=0.0)
        to = k_base + before.to(tl.int64) * k_token + pair[None, :]
        put = tl.where(room, half, 0)  # a mask of a scalar and a block: the interpreter has none
        tl.store(to, k_low, mask=(pair < put)[None, :])
        tl.store(to + half, k_high, mask=(pair < put)[None, :])
        tl.store(v_base + before.to(tl.int64) * v_token + column[None, :], v_new, mask=(column < 2 * put)[None, :])
        products = q_low.to(tl.float32) * k_low.to(tl.float32) + q_high.to(tl.float32) * k_high.to(tl.float32)
        top = tl.sum(products, 1) * scale
        total = tl.full((ROWS,), 1.0, tl.float32)
        acc += v_new.to(tl.float32)

    share = tl.cdiv(tl.cdiv(before, PARTS), TOKENS) * TOKENS
    start = tl.minimum(part * share, before)
    end = tl.minimum(start + share, before)
    for at in range(start, end, TOKENS):
        token = at + tl.arange(0, TOKENS)
        there = (token < end)[:, None]
        k_at = k_base + token.to(tl.int64)[:, None] * k_token + pair[None, :]
        low = tl.load(k_at, mask=there & some, other=0.0, eviction_policy=LOAD)
        high = tl.load(k_at + half, mask=there & some, other=0.0, eviction_policy=LOAD)
        v = tl.load(v_base + token.to(tl.int64)[:, None] * v_token + column[None, :], mask=there & wide, other=0.0, eviction_policy=LOAD)
        scores = tl.dot(q_low, tl.trans(low), input_precision=PRECISION)
        scores = tl.dot(q_high, tl.trans(high), scores, input_precision=PRECISION) * scale
        scores = tl.where((token < end)[None, :], scores, float("-inf"))
        higher = tl.maximum(top, tl.max(scores, 1))
        weights = tl.exp2(scores - finite(higher)[:, None])
        fade = tl.exp2(top - finite(higher))
        total = total * fade + tl.sum(weights, 1)
        acc = tl.dot(weights.to(v.dtype), v, acc * fade[:, None], input_precision=PRECISION)
        top = higher

    first = (sequence * kv_heads + head) * group
    result = first + row
    if PARTS == 1:
        y = tl.where(room, acc / total[:, None], float("nan"))
        tl.store(out_ptr + result[:, None] * head_dim + column[None, :], y.to(out_ptr.dtype.element_ty), mask=real[:, None] & wide)
    else:
        slot = result * PARTS + part
        tl.store(top_ptr + slot, top, mask=real)
        tl.store(sum_ptr + slot, total, mask=real)
        tl.store(acc_ptr + slot[:, None] * HEAD + column[None, :], acc, mask=(real & (total != 0))[:, None])
        tl.debug_barrier()  # all threads have stored before one of them counts, and so releases, for all
        count_at = count_ptr + sequence * kv_heads + head
        if tl.atomic_add(count_at, 1, sem="acq_rel") == PARTS - 1:
            length_at = lengths_ptr + sequence * length_step
            merged(out_ptr, top_ptr, sum_ptr, acc_ptr, length_at, first, capacity, group, head_dim, PARTS, GROUP, HEAD, AT_ONCE)
            tl.store(count_at, 0)


def split(workload: Workload, config: Config) -> TritonLaunch:
    """`parts` programs for each KV head."""
    batch, q_heads, kv_heads, capacity, head_dim = (
        workload.dim(name) for name in ("batch", "q_heads", "kv_heads", "capacity", "head_dim")
    )
    parts, group, rows = int(config["parts"]), q_heads // kv_heads, rows_of(workload)
    k, v = workload["k_cache"].strides, workload["v_cache"].strides
    fixed = (capacity, kv_heads, group, head_dim, workload["qkv"].strides[0], *k[:3], *v[:3], workload["lengths"].strides[0])
    half = max(triton.next_power_of_2(head_dim // 2), 16)
    constants = {
        "PARTS": parts, "ROWS": rows, "GROUP": triton.next_power_of_2(group), "TOKENS": int(config["tokens"]), "HALF": half,
        "HEAD": 2 * half, "AT_ONCE": columns_at_once(config, workload), "PRECISION": "ieee" if workload.dtype == "float32" else "tf32",
        "LOAD": "evict_first" if config["hint"] == "load" else "", "PDL": overlaps(config),
    }  # fmt: skip

    def arguments(
        outputs: tuple[Tensor, ...], qkv: Tensor, k_cache: Tensor, v_cache: Tensor, lengths: Tensor, cos: Tensor, sin: Tensor,
        scale: float | None,
    ) -> tuple[Any, ...]:  # fmt: skip
        scratch = outputs[1:] if parts > 1 else (None, None, None, None)
        by = (float(scale) if scale is not None else head_dim**-0.5) * LOG2_E
        return outputs[0], *scratch, qkv, k_cache, v_cache, lengths, cos, sin, by, cos.stride(0), sin.stride(0), *fixed

    state = TensorSpec((batch * q_heads, parts), "float32")
    work = (state, state, TensorSpec((batch * q_heads, parts, 2 * half), "float32"))
    return TritonLaunch(
        split_kernel, (batch * kv_heads * parts, 1, 1), arguments, constants, num_warps=int(config["num_warps"]),
        num_stages=int(config["num_stages"]), workspace=work if parts > 1 else (), counters=batch * kv_heads if parts > 1 else 0,
        pdl=overlaps(config),
    )  # fmt: skip
