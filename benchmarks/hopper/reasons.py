"""Why ours lose, by op and shape. A reason here is what the design of the kernel implies, not what a profiler was seen to say."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.hopper.arithmetic import TILES, Cut
from benchmarks.hopper.rows import few_rows, ragged
from kernelyard.registry.spec import Workload

Reason = tuple[str, Callable[[Workload], bool], str]
LITTLE = 1 << 25
"""Elements of a weight that are read in some 15 us at 4 TB/s."""
UNEXPLAINED = "not explained"
SMALL = 16
"""Rows that are on their way before a launch is over."""
REASONS: tuple[Reason, ...] = (
    ("attention", lambda w: w.dim("q_len") <= 512, "few blocks of keys a tile: the pipeline is filling or emptying for most of it"),
    ("attention", lambda w: w.dim("head_dim") == 64, "half of the products beside each exponential: exponentials are no longer hidden"),
    ("attention", lambda w: not w.static("causal"), "tiles are alike: planning their order buys nothing, the inner loop itself is slower"),
    ("attention_decode", lambda w: w.has("block_table"), "a look into the block table ahead of each block of keys"),
    ("attention_decode", lambda w: w.dim("batch") == 1, "few bytes to read: splitting and merging are not hidden behind them"),
    ("matmul", ragged, "a copy of each factor whose rows start at no multiple of 16 bytes"),
    ("matmul", lambda w: 16 < w.dim("m") < 256, "fewer tiles than multiprocessors: k is split, and the sums are added by a second launch"),
    ("matmul", lambda w: w.dim("m") in range(5, 17), "tiles of 64 or 128 rows for a few of numbers: read as a matrix, bound by memory"),
    ("matmul", lambda w: few_rows(w) and w.dim("n") * w.dim("k") < LITTLE,
     "latency: too little of the weight is under way on each multiprocessor"),
    ("matmul", lambda w: w.static("activation") != "none", "tensor cores wait while a tile is ended by the warps that fed them"),
    ("matmul", lambda w: not few_rows(w) and Cut(w.dim("m"), w.dim("n"), *TILES[0]).waves <= 1,
     "one round of tiles: no next tile whose factors arrive while this result is written"),
)  # fmt: skip


def why(op: str, work: Workload | None) -> str:
    """The first reason that fits; of ops over rows by their width."""
    for name, fits, reason in REASONS:
        if name == op and work is not None and fits(work):
            return reason
    return _of_rows(work) if work is not None else UNEXPLAINED


def _of_rows(work: Workload) -> str:
    sizes = dict(work.dims)
    if sizes.get("rows", SMALL + 1) <= SMALL:
        return "launching is all: there is little to read"
    if sizes.get("cols", 0) >= 16384:
        return "a row is more than a block's registers hold: a cluster shares it, or it is read twice"
    if sizes.get("cols", 0) % 8:
        return "rows that start at no multiple of 16 bytes: aligned lines are read and shifted"
    return UNEXPLAINED
