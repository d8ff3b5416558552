"""Typical inputs of `attention_decode` and what they cost. How long sequences are is decided here, once for both.

A cost model that counts whole caches tells too many bytes of sequences that are shorter: a kernel that reads what it must then seems
to do the impossible. So lengths follow from a workload and a seed, without a tensor and on any device alike, and `cost` sums over
those of the seed that is timed.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kernelyard.contracts.attention import SHARPER
from kernelyard.contracts.rows import random_tensor
from kernelyard.registry.lazy import torch
from kernelyard.registry.op import TIMED_SEED
from kernelyard.registry.spec import DTYPE_BYTES, Cost, TensorSpec, Workload

if TYPE_CHECKING:
    from torch import Generator, Tensor

SPARE_BLOCKS = 3
"""Blocks of a typical paged cache that no sequence uses."""
FULL = 1024
"""Typical sequences of a capacity that this divides are as long as it, and all the same: what speed is measured on. Others differ."""


def full(workload: Workload) -> bool:
    """Whether typical sequences are all as long as can be; see FULL."""
    return workload.dim("capacity") % FULL == 0


def lengths(workload: Workload, seed: int) -> tuple[int, ...]:
    """One of each sequence: all as long as can be, or, where they differ, the first as long as can be, one of none, others random."""
    batch, capacity = workload.dim("batch"), workload.dim("capacity")
    if full(workload):
        return (capacity,) * batch
    draw = random.Random(f"{seed} {batch} {capacity}").random  # Python keeps this sequence for a seed across versions
    return tuple({0: capacity, 2: 0}.get(b, int(draw() * (capacity + 1))) for b in range(batch))


def counted(workload: Workload, seed: int) -> tuple[int, ...]:
    """Tokens of each sequence that count: its length, less those of a first block that is none of the cache's."""
    *others, last = lengths(workload, seed) or (0,)
    return (*others, max(last - workload.dim("block_size"), 0) if _lost(workload) else last)


def _lost(workload: Workload) -> bool:
    """Whether the table names a block that is none of the cache's for the start of the last sequence."""
    return workload.dim("block_size") > 0 and workload.dim("batch") > 1 and not full(workload)


def cost(workload: Workload) -> Cost:
    """Of the sequences that are timed: tokens that count, read once for all heads that share them, and queries that see one of them."""
    seen, q_len = counted(workload, TIMED_SEED), workload.dim("q_len")
    queries = [min(n, q_len) for n in seen]  # the last ones: each sees one token less than the next
    pairs = sum(m * n - m * (m - 1) // 2 for m, n in zip(queries, seen, strict=True))
    q_heads, head_dim = workload.dim("q_heads"), workload.dim("head_dim")
    read = (sum(queries) * q_heads + 2 * sum(seen) * workload.dim("kv_heads")) * head_dim * DTYPE_BYTES[workload.dtype]
    return Cost(bytes=read + workload["q"].nbytes, flops=4 * pairs * q_heads * head_dim)


def inputs(workload: Workload, generator: Generator) -> tuple[Any, ...]:
    """Sequences of the `lengths` of the generator's seed; where these differ, NaN where no token counts."""
    batch, device = workload.dim("batch"), generator.device
    table, entries = None, batch
    if workload.has("block_table"):
        used = batch * workload["block_table"].shape[1]
        entries = used + SPARE_BLOCKS
        table = torch.randperm(entries, generator=generator, device=device)[:used].to(torch.int32).view(batch, -1)
    q = random_tensor(workload["q"], generator)
    k, v = (random_tensor(_with_entries(workload[name], entries), generator) for name in ("k", "v"))
    some = torch.tensor(lengths(workload, generator.initial_seed()), dtype=torch.int32, device=device)
    if not full(workload):
        table = _forget(k, v, some, table)
    if table is not None and _lost(workload):
        table[-1, :1] = k.shape[0]
    return q, k, v, some, table, SHARPER * max(workload.dim("head_dim"), 1) ** -0.5


def _forget(k: Tensor, v: Tensor, some: Tensor, table: Tensor | None) -> Tensor | None:
    """NaN for all tokens past their length, and a table (in no order) with -1 there."""
    block = k.shape[2]
    counts = torch.arange(block * (1 if table is None else table.shape[1]), device=k.device) < some[:, None]
    if table is not None:
        of_sequences, counts = counts.view(*table.shape, block), torch.zeros(k.shape[0], block, dtype=torch.bool, device=k.device)
        counts[table.long()] = of_sequences
        table = table.masked_fill(~of_sequences.any(-1), -1)
    for cache in (k, v):
        cache.masked_fill_(~counts[:, None, :, None], float("nan"))
    return table


def _with_entries(spec: TensorSpec, entries: int) -> TensorSpec:
    """A cache of so many sequences or blocks: a workload has it with one."""
    span = 1 + sum((size - 1) * stride for size, stride in zip(spec.shape[1:], spec.strides[1:], strict=True))
    return replace(spec, shape=(entries, *spec.shape[1:]), strides=(span if spec.numel else 1, *spec.strides[1:]))
