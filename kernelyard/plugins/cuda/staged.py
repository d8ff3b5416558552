"""What the kernels whose rows wait in shared memory have in common: what they support, what of them is tuned and why; see staged.cuh."""

from __future__ import annotations

from kernelyard.plugins.cuda import spaces
from kernelyard.plugins.cuda.rows import defines, stride, vector, vectors
from kernelyard.registry.space import ConfigSpace, Constraint, Parameter
from kernelyard.registry.spec import DTYPE_BYTES, YES, Answer, Config, Workload, no

MOST_COLS = 65536
"""Of float32 and a residual, over four blocks: 128 KiB each."""
THREADS = Parameter("threads", (128, 256, 512, 1024), "of a block, of up to eight vectors each: a warp for every scheduler at least")
CLUSTER = Parameter("cluster", (1, 2, 4), "blocks that share a row: 32 KB a block leave no gaps between loads; narrow rows are one block's")
BLOCKS = Parameter("blocks_per_sm", (1, 2, 3, 4, 6), "that registers are kept for: what is on its way while others reduce and write")
SECOND = Parameter("second", ("kept", "again"), "exponentials stay in registers, or are taken again of the row in shared memory")


def rows_start_at_16_bytes(workload: Workload) -> Answer:
    """Whether every row of every input starts at a multiple of 16 bytes and is whole vectors."""
    cols = workload.dim("cols")
    for name, spec in workload.tensors:
        if spec is None:
            continue
        if not spec.aligned:
            return no(f"{name} must start at a multiple of 16 bytes")
        between = cols if name == "w" else stride(spec, workload)
        if cols % vector(workload) or between % vector(workload):
            return no(f"rows of {name} of {cols} columns, {between} apart, don't all start and end at multiples of 16 bytes")
    return YES


def given(workload: Workload, config: Config) -> dict[str, str | int]:
    """The defines of staged.cuh; raises Unsupported where the GPU is older than a config needs."""
    return {**defines(workload, config), "CTAS": int(config["blocks_per_sm"])}


def _registers(config: Config, workload: Workload) -> int:
    """Compiled for sm_90a: 80 with eight vectors of exponentials kept, 40 with none.

    With the weight: 64 with eight vectors; beside a residual 56 with four, 80 with eight.
    """
    if "second" in config:
        return 40 if config["second"] == "again" else 16 + vector(workload) * max(vectors(workload, config), 3)
    weight = DTYPE_BYTES[workload["w"].dtype] * vector(workload) // 4 if workload.has("w") else 0
    return 32 + (weight - 1) * vectors(workload, config) + (16 if workload.has("residual") else 0)


def _registers_fit(config: Config, workload: Workload) -> bool:
    registers = _registers(config, workload)
    return registers * int(config["threads"]) * int(config["blocks_per_sm"]) <= 65536 and registers <= 255


def _fits_processor(config: Config, workload: Workload) -> bool:
    blocks, threads = int(config["blocks_per_sm"]), int(config["threads"])
    staged = 16 * vectors(workload, config) * threads * (2 if workload.has("residual") else 1)
    return blocks * (staged + 2048) <= spaces.MOST_SHARED_BYTES and blocks * threads <= spaces.MOST_THREADS


RULES = (
    spaces.BUSY, spaces.SPILLS,
    Constraint(_fits_processor, "so many blocks and rows don't fit a multiprocessor (227 KiB of shared memory, 2048 threads)"),
    Constraint(_registers_fit, "a multiprocessor's 65536 registers don't hold what so many blocks keep of a row"),
)  # fmt: skip


def default(workload: Workload) -> Config:
    """The least cluster whose blocks have 32 KiB of a row, eight vectors a thread, and as many blocks as fit; half of that of each where a
    residual is beside it (130.2 us, and 130.9 by twice as much, at 2048x32768)."""
    whole, share = max(workload.dim("cols") // vector(workload), 1), 2 if workload.has("residual") else 1
    blocks = next((n for n in (1, 2, 4) if share * whole <= n * 2048), 4)
    threads = next((n for n in (128, 256, 512) if share * whole <= 8 * n * blocks), 1024)
    return _most_blocks({"threads": threads, "cluster": blocks, "hint": "none", "overlap": True}, workload)


def softmax_default(workload: Workload) -> Config:
    """As `default`, exponentials kept, in as many blocks as registers then allow."""
    return _most_blocks({**default(workload), "second": "kept"}, workload)


def _again(workload: Workload) -> tuple[Config, ...]:
    """Exponentials taken again, in as many blocks as fit then."""
    return (_most_blocks({**default(workload), "second": "again"}, workload),)


def _most_blocks(config: Config, workload: Workload) -> Config:
    tried: list[Config] = [{**config, "blocks_per_sm": n} for n in (6, 4, 3, 2)]
    return next((config for config in tried if all(rule.holds(config, workload) for rule in RULES)), {**config, "blocks_per_sm": 1})


SHARED = (THREADS, CLUSTER, BLOCKS, spaces.HINT, spaces.OVERLAP)
NORM = ConfigSpace(SHARED, RULES, default)
SOFTMAX = ConfigSpace((*SHARED, SECOND), RULES, softmax_default, _again)
