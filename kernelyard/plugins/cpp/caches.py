"""The declaration of the C++ attention over a cache: what it takes, and what is tuned."""

from __future__ import annotations

from kernelyard.plugins.cpp.linears import DTYPES, HEADERS, STREAMS
from kernelyard.plugins.cpp.spaces import BYTES_A_THREAD, THREADS, processors
from kernelyard.registry.kernel import Kernel, Support
from kernelyard.registry.space import ConfigSpace, Constraint, Parameter
from kernelyard.registry.spec import YES, Answer, Config, Workload, no

PART = 64
"""Tokens that are taken at once; a part has no fewer."""
PARTS = Parameter("parts", (1, 2, 4, 8, 16), "of a sequence's tokens: work for threads where few KV heads and sequences are")


def _tasks(workload: Workload) -> int:
    return workload.dim("batch") * workload.dim("kv_heads")


def _worth_it(config: Config, workload: Workload) -> bool:
    return config["parts"] == 1 or int(config["parts"]) * PART <= workload.dim("capacity")


def _defaults(workload: Workload) -> Config:
    tokens = workload.dim("batch") * workload.dim("capacity") * workload.dim("kv_heads") * workload.dim("head_dim")
    bytes_read = 2 * tokens * (4 if workload.dtype == "float32" else 2)
    threads = 1 << max(min(processors(), bytes_read // BYTES_A_THREAD, 64), 1).bit_length() - 1
    parts = next((n for n in (1, 2, 4, 8, 16) if n * _tasks(workload) >= threads or 2 * n * PART > workload.dim("capacity")), 16)
    rows = workload.dim("q_heads") // max(workload.dim("kv_heads"), 1) * workload.dim("q_len")
    return {"threads": min(threads, _at_most(workload, parts)), "parts": parts, "streams": 8 if rows <= 2 else 4}


def _at_most(workload: Workload, parts: int) -> int:
    return 1 << max(_tasks(workload) * parts, 1).bit_length() - 1


SPACE = ConfigSpace(
    (THREADS, PARTS, STREAMS),
    (
        Constraint(lambda c, w: int(c["threads"]) <= processors(), "more threads than this process has CPUs"),
        Constraint(lambda c, w: int(c["threads"]) <= max(_tasks(w) * int(c["parts"]), 1), "more threads than heads of the cache and parts"),
        Constraint(_worth_it, f"parts of fewer than {PART} tokens"),
    ),
    _defaults,
)


def rows_of_tables(workload: Workload) -> Answer:
    """Entries of a sequence's block table lie one behind the other."""
    if not workload.has("block_table") or workload["block_table"].numel == 0 or workload["block_table"].strides[-1] == 1:
        return YES
    return no(f"rows of block_table must be contiguous, its strides are {workload['block_table'].strides}")


ATTENTION_DECODE = Kernel(
    name="cpp.split",
    op="attention_decode",
    backend="cpp",
    summary="the online softmax over blocks of 64 tokens, once for all heads that share them",
    entry="kernelyard.plugins.cpp.attention_decode:split",
    support=Support(("cpu",), DTYPES, predicates=(rows_of_tables,)),
    space=SPACE,
    files=("vector_add.py", "attention_decode.cpp", *HEADERS),
    fallbacks=("torch.eager",),
    priority=10,
)
