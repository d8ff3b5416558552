"""Scaled dot-product attention, forward: out = softmax(q @ k.T * scale) @ v, and the logarithm of each row's sum where asked.

q is (batch, q_heads, q_len, head_dim); k and v are (batch, kv_heads, kv_len, head_dim). Query head h reads head h // (q_heads / kv_heads)
of k and v (Ainslie et al., "GQA", 2023). `scale` is 1 / sqrt(head_dim) where none is given.

Causal means aligned to the bottom right: the last query sees every key, query i keys up to i + kv_len - q_len. A query that sees no
key gives 0, and -inf for its logarithm. All is in float32 but the weights, which may be rounded to v's dtype before their product with v.

Returns (out, lse): lse is float32, (batch, q_heads, q_len), the natural logarithm of the sum of exp(q @ k.T * scale) over the keys seen;
without `return_lse` an empty tensor of shape (0,).

Source: Vaswani et al., "Attention Is All You Need" (2017), section 3.2.1; lse as in Dao, "FlashAttention-2" (2023).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kernelyard.contracts.attention_points import Specs, attention_matrices, attention_tolerance, bshd, offset
from kernelyard.contracts.rows import ALL_DTYPES, random_tensor, refuse_dtype, refuse_elsewhere
from kernelyard.errors import InvalidInput
from kernelyard.registry.lazy import torch
from kernelyard.registry.op import Op
from kernelyard.registry.spec import Cost, Scalar, TensorSpec, Tolerance, Workload

if TYPE_CHECKING:
    from torch import Generator, Tensor

SHARPER = 1.5
"""Typical inputs have a scale of so much over sqrt(head_dim): a scale left out is seen, and no key takes all the weight."""
MOST_SCORES = 1 << 26
"""Scores that the reference holds at once."""


def _tensors(sizes: Mapping[str, int], dtype: str, statics: Mapping[str, Scalar]) -> dict[str, TensorSpec | None]:
    batch, head_dim = sizes["batch"], sizes["head_dim"]
    cache = TensorSpec((batch, sizes["kv_heads"], sizes["kv_len"], head_dim), dtype)
    return {"q": TensorSpec((batch, sizes["q_heads"], sizes["q_len"], head_dim), dtype), "k": cache, "v": cache}


def _sizes(specs: Specs) -> dict[str, int]:
    q, k = specs["q"], specs["k"]
    assert q is not None and k is not None
    batch, q_heads, q_len, head_dim = q.shape
    return {"batch": batch, "q_heads": q_heads, "kv_heads": k.shape[1], "q_len": q_len, "kv_len": k.shape[2], "head_dim": head_dim}


def validate(q: Tensor, k: Tensor, v: Tensor, scale: float | None, causal: bool, return_lse: bool) -> None:
    """Refuses what the contract leaves undefined."""
    refuse_heads("attention", q, k, v)
    if k.shape[0] != q.shape[0]:
        raise InvalidInput(f"attention: q has {q.shape[0]} sequences, k has {k.shape[0]}.", do="Give both the same.")


def refuse_heads(op: str, q: Tensor, k: Tensor, v: Tensor) -> None:
    """What are no heads of one size, or can't be shared out evenly."""
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        if tensor.dim() != 4:
            raise InvalidInput(f"{op}: {name} has shape {tuple(tensor.shape)}.", do=f"Give {name} as (batch, heads, length, head_dim).")
        refuse_dtype(op, name, tensor)
        if tensor.dtype != q.dtype or tensor.shape[-1] != q.shape[-1]:
            told = f"{name} is {tensor.dtype} of head_dim {tensor.shape[-1]}, q {q.dtype} of {q.shape[-1]}"
            raise InvalidInput(f"{op}: {told}.", do="Give all three in one dtype and head_dim.")
        refuse_elsewhere(op, name, tensor, "q", q)
    if k.shape != v.shape:
        raise InvalidInput(f"{op}: k has shape {tuple(k.shape)}, v {tuple(v.shape)}.", do="Give both in one shape.")
    if k.shape[1] == 0 or q.shape[1] % k.shape[1]:
        told = f"{q.shape[1]} query heads can't share {k.shape[1]} heads of k and v evenly"
        raise InvalidInput(f"{op}: {told}.", do="Give a multiple of k's heads to q.")


def reference(q: Tensor, k: Tensor, v: Tensor, scale: float | None, causal: bool, return_lse: bool) -> tuple[Tensor, Tensor]:
    """The meaning, in the precision of q, some queries at a time so that long sequences fit in memory."""
    (batch, q_heads, q_len, _), kv_len = q.shape, k.shape[2]
    out, lse = torch.empty_like(q, memory_format=torch.contiguous_format), q.new_empty(q.shape[:-1])
    at_once = max(MOST_SCORES // max(batch * q_heads * kv_len, 1), 1)
    for start in range(0, q_len, at_once):
        some = slice(start, min(start + at_once, q_len))
        query = torch.arange(some.start, some.stop, device=q.device)[:, None]
        seen = torch.arange(kv_len, device=q.device)[None, :] <= query + (kv_len - q_len if causal else kv_len)
        out[:, :, some], lse[:, :, some] = attend(q[:, :, some], k, v, seen, scale_of(scale, q))
    return out, lse if return_lse else lse.new_empty(0)


def attend(q: Tensor, k: Tensor, v: Tensor, seen: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Attention with a mask that can be expanded to the scores, and the logarithm of each row's sum; in the precision of q."""
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    if k.shape[2] == 0:
        return torch.zeros_like(q), q.new_full(q.shape[:-1], -math.inf)
    scores = ((q @ k.mT) * scale).masked_fill(~seen, -math.inf)
    largest = scores.amax(-1, keepdim=True)
    weights = (scores - largest.masked_fill(largest == -math.inf, 0.0)).exp()
    total = weights.sum(-1, keepdim=True)
    return (weights @ v) / total.masked_fill(total == 0.0, 1.0), (largest + total.log()).squeeze(-1)


def scale_of(scale: float | None, q: Tensor) -> float:
    """1 / sqrt(head_dim) where none is given."""
    return float(max(q.shape[-1], 1) ** -0.5) if scale is None else scale


def _empty(q: Tensor, k: Tensor, v: Tensor, scale: float | None, causal: bool, return_lse: bool) -> tuple[Tensor, ...]:
    lse = q.new_empty(q.shape[:-1] if return_lse else (0,), dtype=torch.float32)
    return torch.empty_like(q, memory_format=torch.contiguous_format), lse


def _inputs(workload: Workload, generator: Generator) -> tuple[Any, ...]:
    q, k, v = (random_tensor(workload[name], generator) for name in ("q", "k", "v"))
    return q, k, v, SHARPER * max(workload.dim("head_dim"), 1) ** -0.5, workload.static("causal"), workload.static("return_lse")


def _tolerance(workload: Workload) -> Tolerance:
    q_len, kv_len = workload.dim("q_len"), workload.dim("kv_len")
    fewest = max(kv_len - q_len + 1, 1) if workload.static("causal") else kv_len
    return attention_tolerance(workload.dtype, workload.dim("head_dim"), kv_len, fewest)


def _cost(workload: Workload) -> Cost:
    """Products and sums of scores that are seen; bytes of q, k, v and the result, each once."""
    batch, heads, q_len, kv_len, head_dim = (workload.dim(name) for name in ("batch", "q_heads", "q_len", "kv_len", "head_dim"))
    pairs = sum_of_seen(q_len, kv_len) if workload.static("causal") else q_len * kv_len
    lse = 4 * batch * heads * q_len if workload.static("return_lse") else 0
    moved = 2 * workload["q"].nbytes + workload["k"].nbytes + workload["v"].nbytes + lse
    return Cost(bytes=moved, flops=4 * batch * heads * pairs * head_dim)


def sum_of_seen(q_len: int, kv_len: int) -> int:
    """Pairs of a query and a key it sees, where the last query sees all: kv_len + (kv_len - 1) + ..., none of them below 0."""
    rows = min(q_len, kv_len)
    return rows * kv_len - rows * (rows - 1) // 2


ATTENTION = Op(
    name="attention",
    summary="scaled dot-product attention, causal or full, heads of k and v shared",
    schema="(Tensor q, Tensor k, Tensor v, float? scale=None, *, bool causal=False, bool return_lse=False) -> (Tensor, Tensor)",
    dims=("batch", "q_heads", "kv_heads", "q_len", "kv_len", "head_dim"),
    dtypes=ALL_DTYPES,
    statics=("causal", "return_lse"),
    tensors=_tensors,
    sizes=_sizes,
    validate=validate,
    empty=_empty,
    reference=reference,
    inputs=_inputs,
    tolerance=_tolerance,
    cost=_cost,
    matrices=attention_matrices(),
    filled=("q", "k"),
    edges=("zeros", "repeated", "nan"),
    layouts={"bshd": bshd, "offset": offset},
    baseline="torch.plain",
)
