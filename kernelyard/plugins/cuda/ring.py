"""What the kernels with a ring of rows in shared memory have in common: what they support, what of them is tuned and why; see ring.cuh."""

from __future__ import annotations

from kernelyard.plugins.cuda import spaces
from kernelyard.plugins.cuda.rows import defines, multiprocessors, need_hopper, stride, vector, vectors
from kernelyard.registry.space import ConfigSpace, Constraint, Parameter
from kernelyard.registry.spec import DTYPE_BYTES, YES, Answer, Config, Workload, no

LEAST_COLS = 1024
"""A narrower row is a copy of under 2 KB, and its barriers cost what its bytes do."""
STAGES = Parameter("stages", (2, 3, 4, 6), "rows of a block on their way or in use: 3 of 32768 columns of 16 bits fill a multiprocessor")
BLOCKS = Parameter("blocks_per_sm", (1, 2, 3, 4, 6, 8), "resident: while one adds or writes, the others' rows are read")
THREADS = Parameter(
    "threads", (64, 128, 256, 512, 1024), "of a block, for one row: two to four vectors each, and a warp for every scheduler"
)


def whole_vectors(workload: Workload) -> Answer:
    """Whether every row starts at a multiple of 16 bytes and is whole vectors, and two of them fit in shared memory."""
    for name, spec in workload.tensors:
        if spec is not None and not spec.aligned:
            return no(f"{name} must start at a multiple of 16 bytes")
    cols, between = workload.dim("cols"), stride(workload["x"], workload)
    if cols % vector(workload) or between % vector(workload):
        return no(f"rows of {cols} columns, {between} apart, don't all start and end at multiples of 16 bytes: `cuda.row` reads those")
    if 2 * _row_bytes(workload) > spaces.MOST_SHARED_BYTES - 1024:
        return no(f"two rows of {_row_bytes(workload)} bytes don't fit in {spaces.MOST_SHARED_BYTES >> 10} KiB of shared memory")
    return YES


def given(workload: Workload, config: Config) -> dict[str, str | int]:
    """The defines of ring.cuh; raises Unsupported where the GPU has no bulk copies."""
    need_hopper("a ring of rows by bulk copies")
    return {**defines(workload, config), "STAGES": int(config["stages"]), "CTAS": int(config["blocks_per_sm"])}


def shape(workload: Workload) -> tuple[int, int, int, int]:
    """Rows, columns, elements between rows, and multiprocessors to walk them."""
    return workload.dim("rows"), workload.dim("cols"), stride(workload["x"], workload), multiprocessors()


def _row_bytes(workload: Workload) -> int:
    return workload.dim("cols") * DTYPE_BYTES[workload.dtype]


def _fits_processor(config: Config, workload: Workload) -> bool:
    blocks = int(config["blocks_per_sm"])
    shared = blocks * (int(config["stages"]) * _row_bytes(workload) + 1024)
    return shared <= spaces.MOST_SHARED_BYTES and blocks * int(config["threads"]) <= spaces.MOST_THREADS


def _registers_fit(config: Config, workload: Workload) -> bool:
    """A row's elements as float32, or packed beside the weight, and some 32 more."""
    registers = 32 + vectors(workload, config) * vector(workload)
    return registers * int(config["threads"]) * int(config["blocks_per_sm"]) <= 65536 and registers <= 160


def default(workload: Workload) -> Config:
    """Four vectors a thread; up to three rows in each of as many blocks as fit and 1024 threads allow, two rows where three don't."""
    whole = max(workload.dim("cols") // vector(workload), 1)
    threads = next((n for n in (64, 128, 256, 512) if 4 * n >= whole), 1024)
    wanted: Config = {"threads": threads, "hint": "none", "overlap": True}
    tried: list[Config] = [
        {**wanted, "stages": stages, "blocks_per_sm": blocks}
        for blocks in (8, 6, 4, 3, 2, 1)
        if blocks * threads <= 1024
        for stages in (4, 3)
    ]
    last: Config = {**wanted, "stages": 2, "blocks_per_sm": 1}
    return next((config for config in tried if all(rule.holds(config, workload) for rule in (PROCESSOR, SPILLS))), last)


PROCESSOR = Constraint(_fits_processor, "so many blocks and rows don't fit a multiprocessor (227 KiB of shared memory, 2048 threads)")
SPILLS = Constraint(_registers_fit, "a multiprocessor's 65536 registers don't hold the rows of so many threads")
SPACE = ConfigSpace((THREADS, STAGES, BLOCKS, spaces.HINT, spaces.OVERLAP), (spaces.BUSY, PROCESSOR, SPILLS), default)
