"""Attention of one or few new tokens over a cache of keys and values, each sequence as long as `lengths` says.

q is (batch, q_heads, q_len, head_dim); the keys of its q_len tokens are in the cache already. The cache is contiguous, k and v
(batch, kv_heads, capacity, head_dim), or paged (Kwon et al., "PagedAttention", 2023): k and v (blocks, kv_heads, block_size, head_dim) and
block_table (batch, most_blocks) int32, where token t of sequence b lies in block block_table[b, t // block_size] at t % block_size.

lengths is (batch,) int32: how many tokens of a sequence count, the new ones at their end among them. Query i sees the tokens before
lengths - q_len + i + 1. A length below 0 counts as 0, one above the capacity (paged: most_blocks * block_size) as the capacity; tokens in
a block that is none of the cache's are left out. What a cache holds at tokens that do not count has no influence, be it NaN, nor have
entries of the table past a length. A query that sees nothing gives 0. Neither lengths nor table is read on the host, so a CUDA graph may
replay the call with others in them.

Scale, shared heads and roundings are those of `attention`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from kernelyard.contracts.attention import attend, refuse_heads, scale_of
from kernelyard.contracts.attention_decode_inputs import cost, full, inputs
from kernelyard.contracts.attention_points import Specs, attention_tolerance, bshd, decode_matrices, offset
from kernelyard.contracts.rows import ALL_DTYPES, refuse_elsewhere
from kernelyard.errors import InvalidInput
from kernelyard.registry.lazy import torch
from kernelyard.registry.op import Op
from kernelyard.registry.spec import Scalar, TensorSpec, Tolerance, Workload

if TYPE_CHECKING:
    from torch import Tensor

MOST_QUERIES = 16


def _tensors(sizes: Mapping[str, int], dtype: str, statics: Mapping[str, Scalar]) -> dict[str, TensorSpec | None]:
    batch, head_dim, block = sizes["batch"], sizes["head_dim"], sizes["block_size"]
    cache = TensorSpec((1, sizes["kv_heads"], block or sizes["capacity"], head_dim), dtype)
    table = TensorSpec((batch, -(-sizes["capacity"] // block)), "int32") if block else None
    q = TensorSpec((batch, sizes["q_heads"], sizes["q_len"], head_dim), dtype)
    return {"q": q, "k": cache, "v": cache, "lengths": TensorSpec((batch,), "int32"), "block_table": table}


def _sizes(specs: Specs) -> dict[str, int]:
    q, k, table = specs["q"], specs["k"], specs["block_table"]
    assert q is not None and k is not None
    batch, q_heads, q_len, head_dim = q.shape
    capacity, block = (table.shape[1] * k.shape[2], k.shape[2]) if table else (k.shape[2], 0)
    return {
        "batch": batch, "q_heads": q_heads, "kv_heads": k.shape[1], "q_len": q_len, "capacity": capacity, "head_dim": head_dim,
        "block_size": block,
    }  # fmt: skip


def validate(q: Tensor, k: Tensor, v: Tensor, lengths: Tensor, block_table: Tensor | None, scale: float | None) -> None:
    """Refuses what the contract leaves undefined."""
    refuse_heads("attention_decode", q, k, v)
    if q.shape[2] > MOST_QUERIES:
        told = f"q has {q.shape[2]} new tokens, the most is {MOST_QUERIES}"
        raise InvalidInput(f"attention_decode: {told}.", do="Use kernelyard.ops.attention for longer ones.")
    if block_table is None and k.shape[0] != q.shape[0]:
        told = f"q has {q.shape[0]} sequences, k has {k.shape[0]}"
        raise InvalidInput(f"attention_decode: {told}.", do="Give both the same, or a block_table for a paged cache.")
    for name, tensor, dims in (("lengths", lengths, 1), ("block_table", block_table, 2)):
        if tensor is None:
            continue
        if tensor.dim() != dims or tensor.shape[0] != q.shape[0]:
            told = f"{name} has shape {tuple(tensor.shape)}, q has {q.shape[0]} sequences"
            raise InvalidInput(f"attention_decode: {told}.", do=f"Give {name} as {'(batch,)' if dims == 1 else '(batch, most_blocks)'}.")
        if tensor.dtype != torch.int32:
            raise InvalidInput(f"attention_decode: {name} is {tensor.dtype}.", do=f"Give {name} in int32.")
        refuse_elsewhere("attention_decode", name, tensor, "q", q)
    if block_table is not None and k.shape[2] == 0:
        raise InvalidInput("attention_decode: blocks of the cache hold no tokens.", do="Give a block_size of at least 1.")


def reference(
    q: Tensor, k: Tensor, v: Tensor, lengths: Tensor, block_table: Tensor | None, scale: float | None
) -> Tensor:
    """The meaning, in the precision of q, one sequence after the other."""
    out = torch.zeros_like(q, memory_format=torch.contiguous_format)
    q_len = q.shape[2]
    for b in range(q.shape[0]):
        keys, values, known = _tokens(k, v, b, block_table)
        tokens, new = torch.arange(keys.shape[1], device=q.device), torch.arange(q_len, device=q.device)
        length = lengths[b].long().clamp(0, keys.shape[1])
        seen = (tokens[None, :] <= length - q_len + new[:, None]) & known[None, :]
        values = values.masked_fill(~seen.any(0)[:, None], 0.0)  # a weight of 0 times NaN is NaN
        out[b], _ = (part[0] for part in attend(q[b : b + 1], keys[None], values[None], seen, scale_of(scale, q)))
    return out


def _tokens(k: Tensor, v: Tensor, b: int, block_table: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Keys and values of one sequence, (kv_heads, capacity, head_dim), and which tokens lie in a block of the cache."""
    if block_table is None:
        return k[b], v[b], torch.ones(k.shape[2], dtype=torch.bool, device=k.device)
    blocks = block_table[b].long()
    inside = (blocks >= 0) & (blocks < k.shape[0])
    safe = torch.where(inside, blocks, 0)
    if k.shape[0] == 0:
        nothing = k.new_zeros(k.shape[1], blocks.numel() * k.shape[2], k.shape[3])
        return nothing, nothing, inside.repeat_interleave(k.shape[2])
    keys, values = (tensor[safe].transpose(0, 1).flatten(1, 2) for tensor in (k, v))
    return keys, values, inside.repeat_interleave(k.shape[2])


def _empty(
    q: Tensor, k: Tensor, v: Tensor, lengths: Tensor, block_table: Tensor | None, scale: float | None
) -> tuple[Tensor, ...]:
    return (torch.empty_like(q, memory_format=torch.contiguous_format),)


def _tolerance(workload: Workload) -> Tolerance:
    capacity = workload.dim("capacity")
    fewest = max(capacity - workload.dim("q_len") + 1, 1) if full(workload) else 1
    return replace(attention_tolerance(workload.dtype, workload.dim("head_dim"), capacity, fewest), others=())


ATTENTION_DECODE = Op(
    name="attention_decode",
    summary="attention of new tokens over a cache of keys and values, contiguous or paged",
    schema="(Tensor q, Tensor k, Tensor v, Tensor lengths, Tensor? block_table=None, float? scale=None) -> Tensor",
    dims=("batch", "q_heads", "kv_heads", "q_len", "capacity", "head_dim", "block_size"),
    dtypes=ALL_DTYPES,
    tensors=_tensors,
    sizes=_sizes,
    validate=validate,
    empty=_empty,
    reference=reference,
    inputs=inputs,
    tolerance=_tolerance,
    cost=cost,
    matrices=decode_matrices(),
    filled=("q", "k"),
    edges=("zeros", "repeated", "nan"),
    layouts={"bshd": bshd, "offset": offset},
    assumed={"block_size": 0},
    tables=("k", "v"),
    baseline="torch.plain",
)
