"""attention_decode in Triton: tokens of a KV head in parts, each by the online softmax, then merged.

split   a program has a part of one sequence's tokens for one KV head: the query heads that share it times the new tokens are its rows,
        padded to the 16 that a product has, so keys and values are read once for all. It leaves its state in float32; with one part,
        the result. A second launch merges the parts of a row in order. Both overlap: the second is there when the first one ends.

Bytes: keys and values once. Bound: memory from some 4096 tokens on, below it the two launches and the longest chain of loads. What
decides is how many programs there are: 132 multiprocessors times one or two, with equal work. A paged cache is read by the same code:
a token's place is looked up in the table, one number a token.

Sources: Dao et al., "Flash-Decoding for long-context inference" (2023); Kwon et al., "PagedAttention" (2023).
Lengths are read by the programs: parts are of the sequence as long as it is, and a graph may be replayed with others.
"""

# A Triton function is typed by its compiler, not by mypy.
# mypy: disable-error-code="untyped-decorator, no-untyped-def"

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from kernelyard.plugins.triton_jit.attention import LOG2_E, folded
from kernelyard.plugins.triton_jit.overlap import begin, overlaps
from kernelyard.registry.backend import TritonLaunch
from kernelyard.registry.spec import Config, TensorSpec, Workload


@triton.jit(do_not_specialize=["k_entry", "v_entry", "entries"])
def part_kernel(
    out_ptr, state_ptr, acc_ptr, q_ptr, k_ptr, v_ptr, lengths_ptr, table_ptr, scale, k_entry, v_entry, entries, q_heads, kv_heads, capacity,
    q_batch, q_head, q_row, k_head, k_row, v_head, v_row, lengths_step, table_batch, table_step,
    Q_LEN: tl.constexpr, ROWS: tl.constexpr, BLOCK_ROWS: tl.constexpr, BN: tl.constexpr, DIM: tl.constexpr, BLOCK_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, PARTS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One part of the tokens of a sequence, for one KV head."""
    begin(PDL)
    part, shared, batch = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    row, dim, some = tl.arange(0, BLOCK_ROWS), tl.arange(0, BLOCK_DIM), tl.arange(0, BN)
    dim_known = dim < DIM
    head, new = shared * (ROWS // Q_LEN) + row // Q_LEN, row % Q_LEN
    known = (row < ROWS)[:, None] & dim_known[None, :]
    q_at = q_ptr + batch * q_batch + head.to(tl.int64)[:, None] * q_head + new.to(tl.int64)[:, None] * q_row + dim[None, :]
    q = tl.load(q_at, mask=known, other=0.0)
    length = tl.minimum(tl.maximum(tl.load(lengths_ptr + batch * lengths_step), 0), capacity)
    each = tl.cdiv(tl.cdiv(length, PARTS), BN) * BN
    first = tl.minimum(part * each, length)
    end = tl.minimum(first + each, length)
    sees = length - Q_LEN + new
    largest = tl.full((BLOCK_ROWS,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK_ROWS,), tl.float32)
    acc = tl.zeros((BLOCK_ROWS, BLOCK_DIM), tl.float32)
    k_ptr += shared.to(tl.int64) * k_head
    v_ptr += shared.to(tl.int64) * v_head
    for start in range(first, end, BN):
        token = start + some
        there = token < end
        if BLOCK_SIZE > 0:
            entry = tl.load(table_ptr + batch * table_batch + (token // BLOCK_SIZE) * table_step, mask=there, other=-1)
            there = there & (entry >= 0) & (entry < entries)
            entry = tl.where(there, entry, 0).to(tl.int64)
            inside = (token % BLOCK_SIZE).to(tl.int64)
        else:
            entry = tl.zeros((BN,), tl.int64) + batch
            inside = token.to(tl.int64)
        k_at = k_ptr + entry * k_entry + inside * k_row
        v_at = v_ptr + entry * v_entry + inside * v_row
        k = tl.load(k_at[None, :] + dim[:, None], mask=there[None, :] & dim_known[:, None], other=0.0)
        v = tl.load(v_at[:, None] + dim[None, :], mask=there[:, None] & dim_known[None, :], other=0.0)
        scores = tl.dot(q, k, input_precision="ieee") * scale
        scores = tl.where(there[None, :] & (token[None, :] <= sees[:, None]), scores, float("-inf"))
        acc, largest, total = folded(acc, largest, total, scores, v)
    if PARTS == 1:
        out = acc / tl.where(total == 0.0, 1.0, total)[:, None]
        at = ((batch * q_heads + head) * Q_LEN + new) * DIM
        tl.store(out_ptr + at[:, None] + dim[None, :], out.to(out_ptr.dtype.element_ty), mask=known)
    else:
        at = ((batch * kv_heads + shared) * PARTS + part) * ROWS + row
        tl.store(state_ptr + 2 * at, largest, mask=row < ROWS)
        tl.store(state_ptr + 2 * at + 1, total, mask=row < ROWS)
        tl.store(acc_ptr + at[:, None] * DIM + dim[None, :], acc, mask=known)


@triton.jit
def merge_kernel(
    out_ptr, state_ptr, acc_ptr,
    Q_LEN: tl.constexpr, ROWS: tl.constexpr, DIM: tl.constexpr, BLOCK_DIM: tl.constexpr, PARTS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One row: its parts scaled to the largest score of all, in order."""
    begin(PDL)
    row, shared = tl.program_id(0), tl.program_id(1).to(tl.int64)
    dim, part = tl.arange(0, BLOCK_DIM), tl.arange(0, PARTS)
    at = (shared * PARTS + part) * ROWS + row
    largest, total = tl.load(state_ptr + 2 * at), tl.load(state_ptr + 2 * at + 1)
    acc = tl.load(acc_ptr + at[:, None] * DIM + dim[None, :], mask=(dim < DIM)[None, :], other=0.0)
    most = tl.max(largest, 0)
    keep = tl.exp2(largest - tl.where(most == float("-inf"), 0.0, most))
    whole = tl.sum(total * keep, 0)
    out = tl.sum(acc * keep[:, None], 0) / tl.where(whole == 0.0, 1.0, whole)
    to = (shared * ROWS + row) * DIM  # rows of a KV head lie one behind the other: its query heads, their new tokens
    tl.store(out_ptr + to + dim, out.to(out_ptr.dtype.element_ty), mask=dim < DIM)


def split(workload: Workload, config: Config) -> TritonLaunch:
    """One launch with one part, two with more."""
    batch, q_heads, kv_heads, q_len, capacity, dim, block_size = (value for _, value in workload.dims)
    rows, parts, pdl = q_heads // kv_heads * q_len, int(config["parts"]), overlaps(config)
    q, k, v = (workload[name].strides for name in "qkv")
    lengths = workload["lengths"].strides[0]
    table = workload["block_table"].strides if workload.has("block_table") else (0, 0)
    fixed = (q_heads, kv_heads, capacity, *q[:3], k[1], k[2], v[1], v[2], lengths, *table)
    shared = {"Q_LEN": q_len, "ROWS": rows, "DIM": dim, "BLOCK_DIM": max(triton.next_power_of_2(dim), 16), "PARTS": parts, "PDL": pdl}
    constants = {**shared, "BLOCK_ROWS": max(triton.next_power_of_2(rows), 16), "BN": int(config["block_kv"]), "BLOCK_SIZE": block_size}

    def arguments(
        outputs: tuple[Tensor, ...], q: Tensor, k: Tensor, v: Tensor, lengths: Tensor, block_table: Tensor | None, scale: float | None
    ) -> tuple[Any, ...]:
        factor = (dim**-0.5 if scale is None else scale) * LOG2_E
        state, acc = outputs[1:] if parts > 1 else (None, None)
        return outputs[0], state, acc, q, k, v, lengths, block_table, factor, k.stride(0), v.stride(0), k.shape[0], *fixed

    def merged(outputs: tuple[Tensor, ...], *args: Any) -> tuple[Any, ...]:
        return outputs

    second = TritonLaunch(merge_kernel, (rows, batch * kv_heads, 1), merged, shared, num_warps=4, pdl=pdl)
    states = batch * kv_heads * parts * rows
    return TritonLaunch(
        part_kernel, (parts, kv_heads, batch if rows else 0), arguments, constants,
        num_warps=int(config["num_warps"]), num_stages=int(config["num_stages"]), pdl=pdl,
        workspace=(TensorSpec((states, 2), "float32"), TensorSpec((states, dim), "float32")) if parts > 1 else (),
        then=second if parts > 1 else None,
    )  # fmt: skip
