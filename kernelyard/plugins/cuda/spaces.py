"""What of the CUDA kernels is tuned, with the reason for each range, which combinations make sense, and the author's choice."""

from __future__ import annotations

from collections.abc import Callable

from kernelyard.plugins.cuda.rows import vector, vectors
from kernelyard.registry.space import ConfigSpace, Constraint, Parameter
from kernelyard.registry.spec import Config, Workload

FEW_ROWS = 264
"""Two for each of an H200's multiprocessors: below it latency is the time."""
MOST_VECTORS = 16
"""Held by a thread: 64 registers. 32 spill."""
MOST_SHARED_BYTES = 227 << 10
MOST_THREADS = 2048

THREADS = Parameter(
    "threads", (16, 32, 64, 96, 128, 192, 256, 384, 512, 768, 1024),
    "of a block for one row: 8 loads in flight a thread where rows are many, one where there are few; elements beside vectors need 14",
)  # fmt: skip
HINT = Parameter(
    "hint", ("none", "load", "store", "stream"),
    "'load' marks x as used once (ld.cs), 'store' y (st.cs), 'stream' both: what displaces nothing works in what others leave of L2",
)  # fmt: skip
OVERLAP = Parameter("overlap", (False, True), "placed before the last kernel ends, and then waits for it: hides a launch (sm_90)")
WEIGHT = Parameter("weight", ("late", "early"), "'early' loads it beside x: a latency less, and 4 registers a vector")
ROWS = Parameter("rows", (1, 2, 4, 8, 16), "groups side by side in a block: fills blocks where rows are narrow")
EACH = Parameter("each", (1, 2, 4, 8), "rows of a group at once: a narrow row alone is one load a thread in flight")
CLUSTER = Parameter(
    "cluster", (2, 4, 8), "blocks that share a row: 8 is the most that every Hopper places, fewer leave no multiprocessor idle"
)
SHARED = Parameter("cluster", (1, 2, 4, 8), "blocks that share a row, so that sums of dw stay in registers: 1 up to some 8192 columns")
STAGES = Parameter("stages", (2, 3, 4, 5), "rows on their way or in use: 2 load one ahead, more cover a latency longer than a row's work")
BLOCKS = Parameter("blocks_per_sm", (1, 2, 3, 4, 6, 8), "resident: more hide each other's barriers, fewer write fewer partial sums of dw")
AHEAD = Parameter("ahead", (False, True), "a row's sums are sent while the one before is written: hides that, reads shared memory twice")


def _few_vectors(config: Config, workload: Workload) -> bool:
    return vectors(workload, config) * int(config.get("each", 1)) <= MOST_VECTORS


def _all_busy(config: Config, workload: Workload) -> bool:
    together = int(config["threads"]) * int(config.get("cluster", 1))
    return config["threads"] in (16, 32) or together * vector(workload) < 2 * workload.dim("cols")


def _whole_blocks(config: Config, workload: Workload) -> bool:
    threads = int(config["threads"]) * int(config["rows"])
    return threads % 32 == 0 and threads <= 1024


def _rows_exist(config: Config, workload: Workload) -> bool:
    together = int(config["rows"]) * int(config["each"])
    return together in (1, 2) or together < 2 * workload.dim("rows")


def _shared_bytes(config: Config, workload: Workload) -> int:
    return int(config["blocks_per_sm"]) * int(config["stages"]) * (32 * vectors(workload, config) * int(config["threads"]) + 128)


def _fits_processor(config: Config, workload: Workload) -> bool:
    blocks = int(config["blocks_per_sm"])
    return _shared_bytes(config, workload) + (blocks << 10) <= MOST_SHARED_BYTES and blocks * int(config["threads"]) <= MOST_THREADS


def _sums_fit(config: Config, workload: Workload) -> bool:
    """Registers: dw, w, x and dy of a vector take 8 + 12 (16-bit) or 4 + 12 (fp32), and some 24 are used beside them."""
    registers = 24 + vectors(workload, config) * (vector(workload) + 12)
    return registers * int(config["threads"]) * int(config["blocks_per_sm"]) <= 65536 and registers <= 255


def _whole_warps(config: Config, workload: Workload) -> bool:
    return int(config["threads"]) % 32 == 0


def _ahead_has_rows(config: Config, workload: Workload) -> bool:
    return not config["ahead"] or (int(config["stages"]) > 2 and int(config["threads"]) * int(config["cluster"]) > 32)


ROWS_AHEAD = Constraint(_ahead_has_rows, "sums ahead need a third row on its way, and more warps than one")
SPILLS = Constraint(_few_vectors, f"a thread would hold more than {MOST_VECTORS} vectors and spill registers")
BUSY = Constraint(_all_busy, "more than half of the threads would have no vector")
BLOCK = Constraint(_whole_blocks, "a block is whole warps, 1024 threads at most")
PADDED = Constraint(_rows_exist, "more than half of a block's rows would not exist")
WARPS = Constraint(_whole_warps, "a block is whole warps")
PROCESSOR = Constraint(_fits_processor, "so many blocks don't fit a multiprocessor (227 KiB of shared memory, 2048 threads)")
SUMS = Constraint(_sums_fit, "a multiprocessor's 65536 registers don't hold the sums of dw, the weight and a row")


def _threads(wanted: int) -> int:
    """The least allowed number that is at least `wanted`."""
    return next((n for n in THREADS.values if isinstance(n, int) and n >= wanted), 1024)


def row_default(workload: Workload) -> Config:
    """Few rows: two vectors a thread, the weight beside it. Many: four, narrow rows side by side and several at once.

    On one H200, bf16, rmsnorm: (1, 4096) 1.45 us with two vectors, 1.72 with one; (4096, 8192) 34.9 with four, 38.2 with
    eight; (1000, 4095) 6.9 with four, 7.6 with two; (8192, 1024) 10.3 with two, 10.7 with four. Of 96 vectors (768 columns) a warp takes
    three each: two warps would be half idle for the second.
    """
    whole, few = max(workload.dim("cols") // vector(workload), 1), workload.dim("rows") <= FEW_ROWS
    threads = _threads(max(whole // 2, 32) if few else max(whole // 4, min(whole // 2, 64)))
    if not few and 64 < whole < 128 and whole % 64:
        threads = 32
    narrow = 1 if few or threads > 64 else 128 // threads
    each = 4 if narrow > 1 and whole <= threads else 1
    return {"threads": threads, "rows": narrow, "each": each, "hint": "none", "overlap": True}


def norm_row_default(workload: Workload) -> Config:
    """As `row_default`, but two vectors a thread of whole rows up to 512 vectors: (8192, 4096) 34.2 us, 34.7 with four (H200, bf16).

    Of 96 vectors each is marked as used once, and nothing overlaps: (4096, 768) 4.93 us, 5.24 without marks, 5.13 overlapping; quack 4.87.
    """
    config, whole = row_default(workload), workload.dim("cols") // vector(workload)
    if workload.dim("rows") <= FEW_ROWS or workload.dim("cols") % vector(workload):
        return config
    if whole == 96:
        return {**config, "hint": "stream", "overlap": False}
    return {**config, "threads": _threads(whole // 2)} if 256 < whole <= 512 else config


def cluster_default(workload: Workload) -> Config:
    """Four vectors a thread and 256 threads a block where 8 blocks suffice."""
    whole = max(workload.dim("cols") // vector(workload), 1)
    blocks = next((n for n in (2, 4, 8) if whole <= n * 1024), 8)
    return {"threads": _threads(max(min(whole // blocks // 4, 1024), 32)), "cluster": blocks, "hint": "none", "overlap": True}


def backward_default(workload: Workload) -> Config:
    """256 threads of up to two vectors; the least cluster that holds a row so; fewer partial sums where rows are few.

    Wide rows send their sums ahead. On one H200, bf16: (2048, 32768) 108.6 us, 123.9 without; there 132 with 512 threads and a cluster of
    four, 141 with one vector a thread.
    """
    whole = max(workload.dim("cols") // vector(workload), 1)
    blocks = next((n for n in (1, 2, 4, 8) if whole <= n * 512), 8)
    threads = _threads(max(min(whole // blocks, 256 if whole <= 4096 else 512), 32))
    wanted: Config = {"threads": threads, "cluster": blocks, "stages": 3, "ahead": blocks > 1, "hint": "none", "overlap": True}
    resident = 768 if workload.dim("rows") > 1024 else 512
    tried: list[Config] = [{**wanted, "blocks_per_sm": n} for n in (8, 6, 4, 3, 2, 1) if n * threads <= resident]
    return next(
        (config for config in tried if all(rule.holds(config, workload) for rule in (PROCESSOR, SUMS))),
        {**wanted, "stages": 2, "ahead": False, "blocks_per_sm": 1},
    )


def _early(default: Callable[[Workload], Config]) -> Callable[[Workload], Config]:
    def with_weight(workload: Workload) -> Config:
        return {**default(workload), "weight": "early" if workload.dim("rows") <= FEW_ROWS else "late"}

    return with_weight


ROW_RULES = (SPILLS, BUSY, BLOCK, PADDED)
SOFTMAX_ROW = ConfigSpace((THREADS, ROWS, EACH, HINT, OVERLAP), ROW_RULES, row_default)
RMSNORM_ROW = ConfigSpace((THREADS, ROWS, EACH, HINT, OVERLAP, WEIGHT), ROW_RULES, _early(norm_row_default))
SOFTMAX_CLUSTER = ConfigSpace((THREADS, CLUSTER, HINT, OVERLAP), (SPILLS, BUSY, WARPS), cluster_default)
RMSNORM_CLUSTER = ConfigSpace((THREADS, CLUSTER, HINT, OVERLAP, WEIGHT), (SPILLS, BUSY, WARPS), _early(cluster_default))
BACKWARD_RULES = (BUSY, WARPS, PROCESSOR, SUMS, ROWS_AHEAD)
BACKWARD = ConfigSpace((THREADS, SHARED, STAGES, BLOCKS, AHEAD, HINT, OVERLAP), BACKWARD_RULES, backward_default)
