"""attention_decode in Triton: split-KV. A sequence's tokens in parts, the online softmax over each, parts merged by a second launch.

split   a program has one KV head of a sequence, the query rows that share it (heads of the group times new tokens, padded to 16: the least
        that tensor cores take) and one part of the tokens. It leaves maximum, sum and weighted values in float32; of one part it
        writes the result itself.
merge   a program a query row: what `contracts.online_softmax.merge` does, over all parts at once.

Bytes: each key and value once, and 8 + 4 D for a query row and part, which stay in L2. 4 D flops a query row and token: bound by memory
while rows are few. A part is a share of the sequence's own length, read on the GPU: sequences that differ keep all programs busy.

Tokens that do not count are not loaded, so what lies there can be anything. A part without tokens has the sum 0, and its
values are neither written nor read. Sums are of weights as float32; the weights are rounded to the cache's dtype for tensor cores.

H200, bf16, 32/8 heads of 128, first default (a program a multiprocessor): 6.3, 10.1, 38.3 us at 1024, 4096, 32768 tokens of one sequence.
Loses at 16 sequences of 4096, one part each: 98.9 us where cuda.cluster takes 63.7 and plain torch 79.2.
"""

# A Triton function is typed by its compiler, not by mypy.
# mypy: disable-error-code="untyped-decorator, no-untyped-def"

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from kernelyard.plugins.triton_jit.attention_decode_views import cache_view, rows_of, steady
from kernelyard.plugins.triton_jit.overlap import begin, overlaps
from kernelyard.registry.backend import TritonLaunch
from kernelyard.registry.spec import Config, TensorSpec, Workload

LOG2_E = 1.4426950408889634


@triton.jit
def finite(x):
    """x, and 0 for -inf: what is subtracted where nothing was seen."""
    return tl.where(x == float("-inf"), 0.0, x)


@triton.jit(do_not_specialize=["entries", "k_entry", "v_entry"])
def split_kernel(
    out_ptr, top_ptr, sum_ptr, acc_ptr, q_ptr, k_ptr, v_ptr, lengths_ptr, table_ptr, scale, entries, k_entry, v_entry,
    capacity, kv_heads, group, q_len, head_dim, q_batch, q_head, q_token, k_head, k_token, v_head, v_token, length_step,
    table_row, table_column,
    UNIT: tl.constexpr, BLOCK_SIZE: tl.constexpr, PARTS: tl.constexpr, ROWS: tl.constexpr, TILES: tl.constexpr,
    TOKENS: tl.constexpr, HEAD: tl.constexpr, PRECISION: tl.constexpr, LOAD: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One part of one KV head, or, of one part, the result."""
    begin(PDL)
    part = tl.program_id(0) % PARTS
    tile = tl.program_id(0) // PARTS % TILES
    head = tl.program_id(0) // (PARTS * TILES) % kv_heads
    sequence = (tl.program_id(0) // (PARTS * TILES) // kv_heads).to(tl.int64)
    length = tl.minimum(tl.maximum(tl.load(lengths_ptr + sequence * length_step), 0), capacity)
    share = tl.cdiv(tl.cdiv(length, PARTS), TOKENS) * TOKENS
    start = tl.minimum(part * share, length)
    end = tl.minimum(start + share, length)

    row = tile * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, HEAD)
    q_row, new = head * group + row // q_len, row % q_len
    real = row < group * q_len
    q_at = q_ptr + sequence * q_batch + q_row.to(tl.int64) * q_head + new.to(tl.int64) * q_token
    q = tl.load(q_at[:, None] + column[None, :], mask=real[:, None] & (column < head_dim)[None, :], other=0.0)
    k_base, v_base = k_ptr + head.to(tl.int64) * k_head, v_ptr + head.to(tl.int64) * v_head
    if BLOCK_SIZE == 0:
        k_base += sequence * (k_entry.to(tl.int64) * UNIT)
        v_base += sequence * (v_entry.to(tl.int64) * UNIT)
    last = length - q_len + new

    top = tl.full((ROWS,), float("-inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    acc = tl.zeros((ROWS, HEAD), tl.float32)
    for first in range(start, end, TOKENS):
        token = first + tl.arange(0, TOKENS)
        there = token < end
        if BLOCK_SIZE == 0:
            k_at = k_base + token.to(tl.int64) * k_token
            v_at = v_base + token.to(tl.int64) * v_token
        else:
            block = tl.load(table_ptr + sequence * table_row + token // BLOCK_SIZE * table_column, mask=there, other=-1)
            there = there & (block >= 0) & (block < entries)
            wide = tl.where(there, block, 0).to(tl.int64)
            k_at = k_base + wide * (k_entry.to(tl.int64) * UNIT) + (token % BLOCK_SIZE).to(tl.int64) * k_token
            v_at = v_base + wide * (v_entry.to(tl.int64) * UNIT) + (token % BLOCK_SIZE).to(tl.int64) * v_token
        inside = there[:, None] & (column < head_dim)[None, :]
        k = tl.load(k_at[:, None] + column[None, :], mask=inside, other=0.0, eviction_policy=LOAD)
        v = tl.load(v_at[:, None] + column[None, :], mask=inside, other=0.0, eviction_policy=LOAD)
        scores = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale
        scores = tl.where(there[None, :] & (token[None, :] <= last[:, None]), scores, float("-inf"))
        higher = tl.maximum(top, tl.max(scores, 1))
        weights = tl.exp2(scores - finite(higher)[:, None])
        fade = tl.exp2(top - finite(higher))
        total = total * fade + tl.sum(weights, 1)
        acc = tl.dot(weights.to(v.dtype), v, acc * fade[:, None], input_precision=PRECISION)
        top = higher

    result = (sequence * kv_heads * group + q_row) * q_len + new
    if PARTS == 1:
        y = tl.where((total == 0)[:, None], 0.0, acc / tl.where(total == 0, 1.0, total)[:, None])
        known = real[:, None] & (column < head_dim)[None, :]
        tl.store(out_ptr + result[:, None] * head_dim + column[None, :], y.to(out_ptr.dtype.element_ty), mask=known)
    else:
        slot = result * PARTS + part
        tl.store(top_ptr + slot, top, mask=real)
        tl.store(sum_ptr + slot, total, mask=real)
        tl.store(acc_ptr + slot[:, None] * HEAD + column[None, :], acc, mask=(real & (total != 0))[:, None])


@triton.jit
def merge_kernel(
    out_ptr, top_ptr, sum_ptr, acc_ptr, head_dim, PARTS: tl.constexpr, HEAD: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One query row."""
    begin(PDL)
    row = tl.program_id(0).to(tl.int64)
    slot, column = row * PARTS + tl.arange(0, PARTS), tl.arange(0, HEAD)
    top, total = tl.load(top_ptr + slot), tl.load(sum_ptr + slot)
    weight = tl.where(total == 0, 0.0, tl.exp2(top - finite(tl.max(top, 0))))
    acc = tl.load(acc_ptr + slot[:, None] * HEAD + column[None, :], mask=(total != 0)[:, None], other=0.0)
    whole = tl.sum(weight * total, 0)
    y = tl.sum(weight[:, None] * acc, 0) / tl.where(whole == 0, 1.0, whole)
    tl.store(out_ptr + row * head_dim + column, y.to(out_ptr.dtype.element_ty), mask=column < head_dim)


def split(workload: Workload, config: Config) -> TritonLaunch:
    """`parts` programs for each KV head and tile of query rows; then one a query row."""
    batch, kv_heads, q_len, head_dim = (workload.dim(name) for name in ("batch", "kv_heads", "q_len", "head_dim"))
    view, rows, parts = cache_view(workload), rows_of(workload), int(config["parts"])
    group = workload.dim("q_heads") // max(kv_heads, 1)
    sizes = (workload.dim("capacity"), kv_heads, group, q_len, head_dim, *view.strides)
    results = batch * workload.dim("q_heads") * q_len
    head = max(triton.next_power_of_2(head_dim), 16)
    constants = {
        "UNIT": view.unit, "BLOCK_SIZE": workload.dim("block_size"), "PARTS": parts, "ROWS": rows.tile, "TILES": rows.tiles,
        "TOKENS": int(config["tokens"]), "HEAD": head, "PRECISION": "ieee" if workload.dtype == "float32" else "tf32",
        "LOAD": "evict_first" if config["hint"] == "load" else "", "PDL": overlaps(config),
    }  # fmt: skip

    def arguments(
        outputs: tuple[Tensor, ...], q: Tensor, k: Tensor, v: Tensor, lengths: Tensor, block_table: Tensor | None, scale: float | None
    ) -> tuple[Any, ...]:
        k, v = steady(k, view.unit), steady(v, view.unit)
        scratch = outputs[1:] if parts > 1 else (None, None, None)
        steps = (k.shape[0], k.stride(0) // view.unit, v.stride(0) // view.unit)
        by = (float(scale) if scale is not None else max(head_dim, 1) ** -0.5) * LOG2_E
        return outputs[0], *scratch, q, k, v, lengths, block_table, by, *steps, *sizes

    def merged(outputs: tuple[Tensor, ...], *args: Any) -> tuple[Any, ...]:
        return *outputs, head_dim

    kept = {name: constants[name] for name in ("PARTS", "HEAD", "PDL")}
    then = TritonLaunch(merge_kernel, (results, 1, 1), merged, kept, num_warps=1 if parts <= 8 else 4, pdl=overlaps(config))
    state = TensorSpec((results, parts), "float32")
    work = (state, state, TensorSpec((results, parts, head), "float32"))
    programs = batch * kv_heads * rows.tiles * parts if results else 0
    return TritonLaunch(
        split_kernel, (programs, 1, 1), arguments, constants, num_warps=int(config["num_warps"]), num_stages=int(config["num_stages"]),
        workspace=work if parts > 1 else (), then=then if parts > 1 else None, pdl=overlaps(config),
    )  # fmt: skip
