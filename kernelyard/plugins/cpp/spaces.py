"""Config spaces of the C++ kernels, and the defaults that measurements on two AVX-512 cores gave."""

from __future__ import annotations

import os
from collections.abc import Callable

from kernelyard.registry.space import ConfigSpace, Constraint, Parameter
from kernelyard.registry.spec import Config, Scalar, Workload

BYTES_A_THREAD = 128 << 10
"""Below this much input a second thread gains nothing: rmsnorm of 16x4096 float32 (256 KiB) gains 1.4x from one, 8x4096 and 4x4096 none."""

BYTES_TO_STREAM = 2 << 20
"""Outputs from here on outgrow a core's L2. Streaming gains 2.1x on 512x4096 (8 MiB), 1.1x on 512x1024 (2 MiB), loses 1.4x on 16x4096."""


def processors() -> int:
    """CPUs that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def input_bytes(workload: Workload) -> int:
    """Bytes of the first tensor: what is read, and as much is written."""
    return next(spec.nbytes for _, spec in workload.tensors if spec is not None)


def rows(workload: Workload) -> int:
    """What is spread over threads: rows, or tokens."""
    sizes = dict(workload.dims)
    return sizes["tokens"] if "tokens" in sizes else sizes["rows"]


def pieces(workload: Workload) -> int:
    """What elementwise kernels spread: pieces of 1024 elements, of every row."""
    sizes = dict(workload.dims)
    return -(-sizes["n"] // 1024) if "n" in sizes else sizes["rows"] * -(-sizes["cols"] // 1024)


THREADS = Parameter("threads", (1, 2, 4, 8, 16, 32, 64), "powers of two up to 64: memory is saturated well before more")
ROWS_PER_TASK = Parameter(
    "rows_per_task",
    (0, 1, 4, 16),
    "0: one equal share a thread, no bookkeeping; else tasks taken when free, for cores that differ or are busy",
)
STREAMING = Parameter(
    "streaming", (False, True), "stores past the caches spare reading the lines that they overwrite; bad where the output is read soon"
)
PREFETCH = Parameter(
    "prefetch", (True, False), "the next row is asked for while this one is in cache; the hardware does not look beyond a page"
)

Count = Callable[[Workload], int]


def _spreading(count: Count) -> tuple[Constraint, ...]:
    return (
        Constraint(lambda c, w: int(c["threads"]) <= processors(), "more threads than this process has CPUs"),
        Constraint(lambda c, w: int(c["threads"]) <= max(count(w), 1), "more threads than rows"),
    )


def _tasks(count: Count) -> Constraint:
    return Constraint(
        lambda c, w: c["rows_per_task"] == 0 or (c["threads"] != 1 and int(c["rows_per_task"]) * int(c["threads"]) <= count(w)),
        "tasks are for two threads or more, and at least one task for each",
    )


BLOCK = Parameter("block", (1, 4), "rows whose columns are summed together: 4 read dw's sums a quarter as often, but keep 16 streams going")
NEXT_ROW = Constraint(lambda c, w: not c["prefetch"] or rows(w) > 1, "one row has no next row to prefetch")
WHOLE_BLOCK = Constraint(lambda c, w: c["block"] == 1 or rows(w) >= 4 * int(c["threads"]), "a block is for four rows a thread or more")


def threads_for(workload: Workload, count: Count = rows) -> int:
    """The largest power of two that leaves each thread enough to do."""
    most = min(processors(), count(workload), input_bytes(workload) // BYTES_A_THREAD, 64)
    return 1 << max(most, 1).bit_length() - 1


def row_space(own: Parameter | None = None, default: Scalar = 0) -> ConfigSpace:
    """The space of a kernel over rows: how rows are spread, how they are stored, and perhaps one parameter of the kernel's own."""
    owned = () if own is None else (own,)

    def defaults(workload: Workload) -> Config:
        return {"threads": threads_for(workload), "rows_per_task": 0, **{p.name: default for p in owned}, **_memory(workload)}

    return ConfigSpace((THREADS, ROWS_PER_TASK, *owned, STREAMING, PREFETCH), (*_spreading(rows), _tasks(rows), NEXT_ROW), defaults)


def shared_space() -> ConfigSpace:
    """The space of a kernel that also sums over rows: an equal share of them for each thread, which has sums of its own."""

    def defaults(workload: Workload) -> Config:
        threads, memory = threads_for(workload), _memory(workload)
        blocks = not memory["streaming"] and rows(workload) >= 4 * threads
        return {"threads": threads, "block": 4 if blocks else 1, **memory}

    return ConfigSpace((THREADS, BLOCK, STREAMING, PREFETCH), (*_spreading(rows), NEXT_ROW, WHOLE_BLOCK), defaults)


def stream_space() -> ConfigSpace:
    """The space of an elementwise kernel."""

    def defaults(workload: Workload) -> Config:
        return {"threads": threads_for(workload, pieces), "rows_per_task": 0, "streaming": _streams(workload)}

    return ConfigSpace((THREADS, ROWS_PER_TASK, STREAMING), (*_spreading(pieces), _tasks(pieces)), defaults)


def _memory(workload: Workload) -> Config:
    streaming = _streams(workload)
    return {"streaming": streaming, "prefetch": streaming and rows(workload) > 1}


def _streams(workload: Workload) -> bool:
    return input_bytes(workload) >= BYTES_TO_STREAM
