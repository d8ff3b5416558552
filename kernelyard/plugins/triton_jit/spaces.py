"""What of the Triton kernels is tuned, with the reason for each range, and which combinations make sense."""

from __future__ import annotations

from kernelyard.plugins.triton_jit import defaults
from kernelyard.plugins.triton_jit.defaults import MOST_IN_LOOP, MOST_PER_THREAD, block_cols
from kernelyard.registry.space import ConfigSpace, Constraint, Parameter
from kernelyard.registry.spec import Config, Workload

ROW_MOST_COLS = 32768
"""One pass at 32768 columns already stops at 79% of a copy (H200, bf16); wider rows are `sweep`'s."""
SWEEP_MOST_COLS = 2**30
"""Column offsets are 32-bit."""


def _per_thread(config: Config, cols: int) -> float:
    return int(config["rows_per_program"]) * cols / (32 * int(config["num_warps"]))


def _row_fits(config: Config, workload: Workload) -> bool:
    return _per_thread(config, block_cols(workload)) <= MOST_PER_THREAD


def _row_busy(config: Config, workload: Workload) -> bool:
    return config["num_warps"] == 1 or _per_thread(config, block_cols(workload)) >= 4


def _persistent_fits(config: Config, workload: Workload) -> bool:
    return _per_thread(config, block_cols(workload)) <= MOST_IN_LOOP


def _sweep_fits(config: Config, workload: Workload) -> bool:
    return _per_thread(config, int(config["block"])) <= MOST_IN_LOOP


def _sweep_busy(config: Config, workload: Workload) -> bool:
    return _per_thread(config, int(config["block"])) >= 4


def _sweep_needed(config: Config, workload: Workload) -> bool:
    return config["block"] == 1024 or int(config["block"]) <= block_cols(workload)


def _rows_exist(config: Config, workload: Workload) -> bool:
    return config["rows_per_program"] == 1 or int(config["rows_per_program"]) < 2 * workload.dim("rows")


SPILLS = f"a thread would hold more than {MOST_PER_THREAD} elements and spill registers"
SPILLS_IN_LOOP = f"a thread would hold more than {MOST_IN_LOOP} elements beside what a loop carries and spill registers"
IDLE = "a thread would hold fewer than 4 elements: most of the warps idle"
PADDED = Constraint(_rows_exist, "more than half of a program's rows would not exist")

WARPS = Parameter("num_warps", (1, 2, 4, 8, 16, 32), "2 are best at 4096 columns of many rows, 16 where one row is all there is")
HINT = Parameter(
    "hint", ("none", "load", "store", "stream"),
    "what is evict_first: nothing, reads, writes, or both; with both a kernel has only the part of L2 that nobody else uses",
)
ROW_PARAMETERS = (
    Parameter("rows_per_program", (1, 2, 4, 8, 16), "more than one only fills a thread's 16-byte loads where rows are narrow"),
    WARPS,
    HINT,
)
WEIGHT = Parameter("weight", ("late", "early"), "'early' loads it beside x: a latency less, and more registers (96 to 120 at 4096 columns)")


def other_warps(default: Config, workload: Workload) -> tuple[Config, ...]:
    """The neighbours of a default of `ROW`, or of a space with its constraints, in warps: the axis that matters most."""
    near = [{**default, "num_warps": w} for w in (int(default["num_warps"]) // 2, 2 * int(default["num_warps"])) if 1 <= w <= 32]
    return tuple(config for config in near if all(rule.holds(config, workload) for rule in ROW.constraints))


def _row_hints(workload: Workload) -> tuple[Config, ...]:
    return other_warps(defaults.row(workload), workload)


ROW = ConfigSpace(ROW_PARAMETERS, (Constraint(_row_fits, SPILLS), Constraint(_row_busy, IDLE), PADDED), defaults.row, _row_hints)

SWEEP = ConfigSpace(
    (
        Parameter("block", (1024, 2048, 4096, 8192, 16384), "columns a step: 16384 is best at 32768; 32768 in one step is `row`'s"),
        Parameter("rows_per_program", (1, 2, 4, 8), "one keeps the row in L2 between sweeps; more serve narrow rows"),
        Parameter("num_warps", (2, 4, 8, 16, 32), "32 are best with blocks of 16384"),
        HINT,
    ),
    (Constraint(_sweep_fits, SPILLS_IN_LOOP), Constraint(_sweep_busy, IDLE), Constraint(_sweep_needed, "the block is larger than the row"),
     PADDED),
    defaults.sweep,
)  # fmt: skip

PERSISTENT = ConfigSpace(
    (
        *ROW_PARAMETERS,
        Parameter("programs_per_sm", (1, 2, 4, 8), "resident programs: enough to hide latency, few enough that the weight is read rarely"),
        Parameter("num_stages", (1, 2, 3), "tiles in flight: 1 loads when the last is stored, more prefetch through shared memory"),
    ),
    (Constraint(_persistent_fits, SPILLS_IN_LOOP), Constraint(_row_busy, IDLE), PADDED),
    defaults.persistent,
)
