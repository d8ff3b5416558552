"""A decode step's attention in one: rope of a new token's query and key, the token put into the cache, attention over all of it.

qkv is (batch, (q_heads + 2 kv_heads) * head_dim): for each sequence the heads of q, then k's, then v's, as one projection leaves them. The
caches are (batch, kv_heads, capacity, head_dim), of any strides. lengths is (batch,) int32: how many tokens each cache holds
already. cos and sin are (positions, head_dim / 2), at least as many positions as the capacity, as `rope` takes them, style 'half'.

Written into: k_cache and v_cache, at position lengths[b] of every head: the rotated key and the value, each rounded to the cache's dtype,
and nothing else. The query sees lengths[b] + 1 tokens, those of the cache before and its own. The result is (batch, q_heads * head_dim).

No room. A sequence whose length is negative, or its cache's capacity and more, has no place for its token: nothing is written, its
result is NaN, and the others are served. Lengths are not read on the host, so a CUDA graph may replay the call with others in them.
What a cache holds past a length has no influence, be it NaN. Neither cache may overlap another argument.

Rotation is in float32, of scores too; scale and shared heads are those of `attention`. A kernel may round the rotated query to qkv's dtype.

Source: Su et al., "RoFormer" (2021), equation 34; Dao et al., "Flash-Decoding for long-context inference" (2023).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from kernelyard.contracts import rope
from kernelyard.contracts.attention import attend, refuse_heads, scale_of
from kernelyard.contracts.attention_points import Specs
from kernelyard.contracts.rope_attention_decode_inputs import cost, fused_matrices, inputs, spread, tolerance
from kernelyard.contracts.rows import ALL_DTYPES, refuse_dtype, refuse_elsewhere
from kernelyard.errors import InvalidInput
from kernelyard.registry.lazy import torch
from kernelyard.registry.op import Op
from kernelyard.registry.spec import Scalar, TensorSpec

if TYPE_CHECKING:
    from torch import Tensor

NAME = "rope_attention_decode"


def _tensors(sizes: Mapping[str, int], dtype: str, statics: Mapping[str, Scalar]) -> dict[str, TensorSpec | None]:
    batch, kv_heads, head_dim = sizes["batch"], sizes["kv_heads"], sizes["head_dim"]
    qkv = TensorSpec((batch, (sizes["q_heads"] + 2 * kv_heads) * head_dim), dtype)
    cache, table = TensorSpec((batch, kv_heads, sizes["capacity"], head_dim), dtype), TensorSpec((1, head_dim // 2), "float32")
    return {"qkv": qkv, "k_cache": cache, "v_cache": cache, "lengths": TensorSpec((batch,), "int32"), "cos": table, "sin": table}


def _sizes(specs: Specs) -> dict[str, int]:
    qkv, cache = specs["qkv"], specs["k_cache"]
    assert qkv is not None and cache is not None
    batch, kv_heads, capacity, head_dim = cache.shape
    if head_dim < 2 or head_dim % 2:
        raise InvalidInput(f"{NAME}: head_dim is {head_dim}, which has no pairs.", do="Give an even head_dim.")
    heads = qkv.shape[1] // head_dim - 2 * kv_heads
    return {"batch": batch, "q_heads": heads, "kv_heads": kv_heads, "capacity": capacity, "head_dim": head_dim}


def validate(
    qkv: Tensor, k_cache: Tensor, v_cache: Tensor, lengths: Tensor, cos: Tensor, sin: Tensor, scale: float | None
) -> None:
    """Refuses what the contract leaves undefined; the values of lengths are nobody's business here."""
    refuse_dtype(NAME, "qkv", qkv)
    if k_cache.dim() != 4 or k_cache.shape[-1] < 2 or k_cache.shape[-1] % 2:
        told = f"k_cache has shape {tuple(k_cache.shape)}"
        raise InvalidInput(f"{NAME}: {told}.", do="Give it as (batch, kv_heads, capacity, head_dim), head_dim even.")
    _refuse_width(qkv, k_cache)
    refuse_heads(NAME, heads_of(qkv, k_cache)[0].unsqueeze(2), k_cache, v_cache)
    for name, cache in (("k_cache", k_cache), ("v_cache", v_cache)):
        if any(size > 1 and stride == 0 for size, stride in zip(cache.shape, cache.stride(), strict=True)):
            told = f"{name} is expanded, its strides are {cache.stride()}"
            raise InvalidInput(f"{NAME}: {told}.", do="Give each element memory of its own: it is written into.")
    if lengths.shape != (qkv.shape[0],) or lengths.dtype != torch.int32:
        raise InvalidInput(f"{NAME}: lengths is {lengths.dtype} {tuple(lengths.shape)}.", do=f"Give it as ({qkv.shape[0]},) in int32.")
    refuse_elsewhere(NAME, "lengths", lengths, "qkv", qkv)
    for name, table in (("cos", cos), ("sin", sin)):
        _refuse_table(name, table, qkv, k_cache)
    if cos.shape != sin.shape or cos.dtype != sin.dtype:
        told = f"cos is {cos.dtype} {tuple(cos.shape)}, sin {sin.dtype} {tuple(sin.shape)}"
        raise InvalidInput(f"{NAME}: {told}.", do="Give both in one shape and dtype.")


def _refuse_width(qkv: Tensor, cache: Tensor) -> None:
    batch, kv_heads, _, head_dim = cache.shape
    if qkv.dim() != 2 or qkv.shape[0] != batch or qkv.shape[1] % head_dim or qkv.shape[1] <= 2 * kv_heads * head_dim:
        told = f"qkv has shape {tuple(qkv.shape)}, the cache {tuple(cache.shape)}"
        raise InvalidInput(f"{NAME}: {told}.", do="Give qkv as (batch, (q_heads + 2 * kv_heads) * head_dim).")


def _refuse_table(name: str, table: Tensor, qkv: Tensor, cache: Tensor) -> None:
    capacity, half = cache.shape[2], cache.shape[3] // 2
    if table.dim() != 2 or table.shape[1] != half or table.shape[0] < capacity:
        told = f"{name} has shape {tuple(table.shape)}, the cache {capacity} positions of head_dim {2 * half}"
        raise InvalidInput(f"{NAME}: {told}.", do=f"Give {name} as (positions, {half}) with at least {capacity} positions.")
    if table.dtype not in (torch.float32, qkv.dtype):
        raise InvalidInput(f"{NAME}: {name} is {table.dtype}, qkv is {qkv.dtype}.", do=f"Give {name} in float32 or qkv's dtype.")
    refuse_elsewhere(NAME, name, table, "qkv", qkv)


def heads_of(qkv: Tensor, cache: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """q, k and v of the new tokens as (batch, heads, head_dim), views of qkv."""
    kv_heads, head_dim = cache.shape[1], cache.shape[3]
    heads = qkv.reshape(qkv.shape[0], qkv.shape[1] // head_dim, head_dim)
    q_heads = heads.shape[1] - 2 * kv_heads
    return heads[:, :q_heads], heads[:, q_heads : q_heads + kv_heads], heads[:, q_heads + kv_heads :]


def reference(
    qkv: Tensor, k_cache: Tensor, v_cache: Tensor, lengths: Tensor, cos: Tensor, sin: Tensor, scale: float | None
) -> Tensor:
    """The meaning, in the precision of qkv, one sequence after the other."""
    out = qkv.new_full((qkv.shape[0], qkv.shape[1] - 2 * k_cache.shape[1] * k_cache.shape[3]), torch.nan)
    for b in range(qkv.shape[0]):
        position = lengths[b : b + 1]
        n = int(position)
        if not 0 <= n < k_cache.shape[2]:
            continue
        q, k, v = heads_of(qkv[b : b + 1], k_cache)
        q, k = (rope.reference(one, cos, sin, position, "half", False) for one in (q, k))
        k_cache[b, :, n], v_cache[b, :, n] = k[0], v[0]
        seen = torch.ones(1, n + 1, dtype=torch.bool, device=qkv.device)
        attended, _ = attend(q.unsqueeze(2), k_cache[b : b + 1, :, : n + 1], v_cache[b : b + 1, :, : n + 1], seen, scale_of(scale, q))
        out[b] = attended.flatten()
    return out


def _empty(
    qkv: Tensor, k_cache: Tensor, v_cache: Tensor, lengths: Tensor, cos: Tensor, sin: Tensor, scale: float | None
) -> tuple[Tensor, ...]:
    return (qkv.new_empty((qkv.shape[0], qkv.shape[1] - 2 * k_cache.shape[1] * k_cache.shape[3])),)


ROPE_ATTENTION_DECODE = Op(
    name=NAME,
    summary="rope of one new token a sequence, its key and value into the cache, attention over that",
    schema="(Tensor qkv, Tensor(a!) k_cache, Tensor(b!) v_cache, Tensor lengths, Tensor cos, Tensor sin, float? scale=None) -> Tensor",
    dims=("batch", "q_heads", "kv_heads", "capacity", "head_dim"),
    dtypes=ALL_DTYPES,
    tensors=_tensors,
    sizes=_sizes,
    validate=validate,
    empty=_empty,
    reference=reference,
    inputs=inputs,
    tolerance=tolerance,
    cost=cost,
    matrices=fused_matrices(),
    filled=("qkv",),
    edges=("zeros", "nan"),
    layouts=spread(),
    tables=("cos", "sin"),
    baseline="torch.plain",
)
