"""The Triton kernels of rmsnorm, add_rmsnorm and their gradients as data: what each supports, what of it is tuned and why."""

from __future__ import annotations

from kernelyard.plugins.triton_jit import norm_defaults, spaces
from kernelyard.plugins.triton_jit.defaults import FEW_PROGRAMS, MOST_PER_THREAD, block_cols
from kernelyard.plugins.triton_jit.launch import vector
from kernelyard.plugins.triton_jit.rows import rows_support
from kernelyard.registry.kernel import Kernel, Support
from kernelyard.registry.space import ConfigSpace, Constraint, Parameter
from kernelyard.registry.spec import YES, Answer, Config, Determinism, Workload, no

ROW_MOST_COLS, ADDED_ROW_MOST_COLS, PERSISTENT_MOST_COLS = 16384, 32768, 32768
"""One pass of rmsnorm over rows of 32768 columns without a row on the way beside it stops at 79% of a copy (H200, bf16); with a
residual twice as much is on the way."""
GRADIENT_MOST_COLS = 16384
"""Weight, tile and share of dw of 16384 columns fill the registers of a multiprocessor; wider rows are `split`'s."""
OVERLAP = Parameter("overlap", (False, True), "programmatic dependent launch: it is on the GPU before the kernel ahead has ended")


def _per_thread(config: Config, cols: int) -> float:
    return int(config["rows_per_program"]) * cols / (32 * int(config["num_warps"]))


def _tile_fits(config: Config, workload: Workload) -> bool:
    return _per_thread(config, block_cols(workload)) <= MOST_PER_THREAD


def _gradient_fits(config: Config, workload: Workload) -> bool:
    return _per_thread(config, block_cols(workload)) <= norm_defaults.GRADIENT_PER_THREAD


def _gradient_busy(config: Config, workload: Workload) -> bool:
    return config["num_warps"] == 1 or _per_thread(config, block_cols(workload)) >= 4


def _tiles_in_flight_fit(config: Config, workload: Workload) -> bool:
    """x, and beside it the weight where each tile loads it, or the residual."""
    rows = int(config["rows_per_program"]) * (2 if workload.has("residual") else 1) + (config["weight"] == "again" and workload.has("w"))
    return _in_flight(config, workload, rows * block_cols(workload))


def _buffers_fit(config: Config, workload: Workload) -> bool:
    return _in_flight(config, workload, (3 if workload.has("dr") else 2) * int(config["rows_per_program"]) * block_cols(workload))


def _row_gradient_fits(config: Config, workload: Workload) -> bool:
    return _gradient_fits({**config, "rows_per_program": 1}, workload)


def _row_gradient_busy(config: Config, workload: Workload) -> bool:
    return _gradient_busy({**config, "rows_per_program": 1}, workload)


def _row_buffers_fit(config: Config, workload: Workload) -> bool:
    return _buffers_fit({**config, "rows_per_program": 1}, workload)


def _block_fits(config: Config, workload: Workload) -> bool:
    return 4 <= _per_thread(config, int(config["block"])) <= norm_defaults.GRADIENT_PER_THREAD


def _block_buffers_fit(config: Config, workload: Workload) -> bool:
    return _in_flight(config, workload, (3 if workload.has("dr") else 2) * int(config["rows_per_program"]) * int(config["block"]))


def _in_flight(config: Config, workload: Workload, elements: int) -> bool:
    """Whether a multiprocessor has room for what its programs have on the way; the interpreter has nothing on the way."""
    buffers = (int(config["num_stages"]) - 1) * elements * 16 // vector(workload)
    return workload.device == "cpu" or int(config["programs_per_sm"]) * buffers <= SHARED


def _sums_fit(config: Config, workload: Workload) -> bool:
    return 4 <= int(config["sums_block"]) / (32 * int(config["sums_warps"])) <= 64


SHARED = 220 * 1024
"""Bytes of shared memory that a multiprocessor of Hopper has for the buffers of all its programs, reductions aside."""
FULL = Constraint(_buffers_fit, f"the tiles in flight would take more than {SHARED >> 10} KiB of shared memory")
SPILLS = f"a thread would hold more than {norm_defaults.GRADIENT_PER_THREAD} elements beside weight and dw, and spill"


def _row_hints(workload: Workload) -> tuple[Config, ...]:
    return spaces.other_warps(norm_defaults.row(workload), workload)


def _added_row_hints(workload: Workload) -> tuple[Config, ...]:
    return spaces.other_warps(norm_defaults.added_row(workload), workload)


ROW = ConfigSpace((*spaces.ROW_PARAMETERS, spaces.WEIGHT, OVERLAP), spaces.ROW.constraints, norm_defaults.row, _row_hints)
SWEEP = ConfigSpace((*spaces.SWEEP.parameters, OVERLAP), spaces.SWEEP.constraints, norm_defaults.sweep)
STORED = Parameter("stored", ("last", "at_once"), "the sum: with y, or before the reduction")
ADDED_ROW = ConfigSpace((*ROW.parameters, STORED), ROW.constraints, norm_defaults.added_row, _added_row_hints)
SECOND = Parameter("second", ("inputs", "sum"), "what the second sweep reads: x and residual, or their sum, which the first stored")
ADDED_SWEEP = ConfigSpace((*SWEEP.parameters, SECOND), SWEEP.constraints, norm_defaults.added_sweep)
PERSISTENT = ConfigSpace(
    (
        *spaces.PERSISTENT.parameters,
        Parameter("weight", ("held", "again"), "'again' loads it for each tile, through shared memory: 32768 columns held spill 80 bytes"),
        OVERLAP,
    ),
    (*spaces.PERSISTENT.constraints, Constraint(_tiles_in_flight_fit, FULL.reason)),
    norm_defaults.persistent,
)
SHIFTED = ConfigSpace(
    (
        Parameter("rows_per_program", (1, 2, 4, 8), "rows of one kind share the weight's loads; softmax loses 20% by two"),
        spaces.WARPS,
        spaces.HINT,
        OVERLAP,
    ),
    (Constraint(_tile_fits, spaces.SPILLS),),
    norm_defaults.shifted,
)
STAGES = Parameter("num_stages", (1, 2, 3, 4), "tiles in flight: one more than the buffers that the next rows arrive in")
PER_SM = Parameter("programs_per_sm", (1, 2, 4), "resident programs: each has a share of dw to be written and added, so few")
SUMS = Parameter("sums", ("joint", "apart"), "both sums of a row in one reduction, or one after the other")
GRADIENT_PERSISTENT = ConfigSpace(
    (
        Parameter("rows_per_program", (1, 2, 4, 8, 16, 32, 64), "2 rows of 4096 columns; narrow rows need more to fill a thread's loads"),
        Parameter("num_warps", (1, 2, 4, 8, 16, 32), "8 at 4096 columns: 32 elements a thread, dw and the weight beside them"),
        PER_SM, STAGES,
        SUMS, spaces.HINT, OVERLAP,
    ),
    (Constraint(_gradient_fits, SPILLS), Constraint(_gradient_busy, spaces.IDLE), FULL),
    norm_defaults.gradient_persistent,
)  # fmt: skip
GRADIENT_SHIFTED = ConfigSpace(
    (
        Parameter("num_warps", (1, 2, 4, 8, 16, 32), "8 at 4095 columns: 16 elements a thread, the ends of rows take registers too"),
        PER_SM, STAGES, SUMS, spaces.HINT, OVERLAP,
    ),
    (Constraint(_row_gradient_fits, SPILLS), Constraint(_row_gradient_busy, spaces.IDLE), Constraint(_row_buffers_fit, FULL.reason)),
    norm_defaults.gradient_shifted,
)  # fmt: skip
GRADIENT_SPLIT = ConfigSpace(
    (
        Parameter("block", (1024, 2048, 4096, 8192), "columns a program keeps dw of; narrower blocks mean more programs a row"),
        Parameter("rows_per_program", (1, 2, 4, 8), "rows at a time"),
        Parameter("num_warps", (4, 8, 16), "threads for a block"),
        PER_SM, STAGES,
        Parameter("sums_block", (1024, 2048, 4096, 8192, 16384), "columns a step of the sweep for the sums"),
        Parameter("sums_warps", (2, 4, 8, 16, 32), "threads for such a step"),
        spaces.HINT, OVERLAP,
    ),
    (
        Constraint(_block_fits, SPILLS), Constraint(_sums_fit, "a step of the sums would give a thread under 4 or over 64 elements"),
        Constraint(_block_buffers_fit, FULL.reason),
    ),
    norm_defaults.gradient_split,
)  # fmt: skip


def rows_start_anywhere(workload: Workload) -> Answer:
    """Whether 16 bytes do not divide a row, rows follow each other without gaps, and the first one is aligned."""
    for name, x in workload.tensors:
        if x is not None and name != "w" and not (x.contiguous and x.aligned):
            return no(f"{name} must be contiguous and start at a multiple of 16 bytes: its rows have to begin where the output's do")
    if workload.dim("cols") % vector(workload) == 0:
        return no(f"rows of {workload.dim('cols')} columns all start at multiples of 16 bytes: `triton.row` reads them whole")
    return YES


def _kernel(op: str, name: str, summary: str, files: tuple[str, ...], **rest: object) -> Kernel:
    module = rest.pop("module", op)
    entry = f"kernelyard.plugins.triton_jit.{module}:{name}"
    return Kernel(f"triton.{name}", op, "triton", summary, entry, files=files, determinism=Determinism.RUN_TO_RUN, **rest)  # type: ignore[arg-type]


def _many(rows: int, least_cols: int, most_cols: int) -> Support:
    """From so many rows of 16 bits on: a range between points that were timed (H200)."""
    return Support(("cuda",), ("bfloat16", "float16"), least={"rows": rows, "cols": least_cols}, most={"cols": most_cols})


FORWARD = ("launch.py", "overlap.py", "rmsnorm.py")
GRADIENT = (
    "launch.py", "overlap.py", "norm_gradient.py", "norm_gradient_shifted.py", "norm_gradient_launch.py", "shifted.py",
)  # fmt: skip


def _forward(op: str, row_most_cols: int, row: ConfigSpace, sweep: ConfigSpace, *sweep_first: tuple[Support, int]) -> tuple[Kernel, ...]:
    return (
        _kernel(
            op, "row", "a tile of whole rows in registers, read once", FORWARD,
            support=rows_support(row_most_cols), space=row, priority=30, fallbacks=("triton.sweep",),
        ),
        _kernel(
            op, "persistent", "a fixed grid walks over rows, the weight held in registers", FORWARD,
            support=rows_support(PERSISTENT_MOST_COLS), space=PERSISTENT, priority=10, fallbacks=("triton.row",),
        ),
        _kernel(
            op, "sweep", "two sweeps over a wide row, the second from L2", FORWARD,
            support=rows_support(spaces.SWEEP_MOST_COLS), space=sweep, priority=20, priority_where=sweep_first,
        ),
    )  # fmt: skip


def _gradient(op: str) -> tuple[Kernel, ...]:
    return (
        _kernel(
            op, "persistent", "a fixed grid walks over rows, the weight and a share of dw in registers", GRADIENT,
            support=rows_support(GRADIENT_MOST_COLS), space=GRADIENT_PERSISTENT, priority=30, fallbacks=("triton.split",),
        ),
        _kernel(
            op, "shifted", "rows of one misalignment a program, 16 bytes at a time", GRADIENT,
            support=rows_support(GRADIENT_MOST_COLS, rows_start_anywhere), space=GRADIENT_SHIFTED, priority=40,
            fallbacks=("triton.persistent",),
        ),
        _kernel(
            op, "split", "a sweep for the sums of each row, then blocks of columns with dw in registers", GRADIENT,
            support=rows_support(spaces.SWEEP_MOST_COLS), space=GRADIENT_SPLIT, priority=20,
        ),
    )  # fmt: skip


def _shifted(op: str, *files: str) -> Kernel:
    return _kernel(
        op, "shifted", "rows of one misalignment a program, 16 bytes at a time", (*FORWARD, "shifted.py", *files), module=f"{op}_shifted",
        support=rows_support(ROW_MOST_COLS, rows_start_anywhere), space=SHIFTED, priority=40, fallbacks=("triton.row",),
    )  # fmt: skip


KERNELS = (
    # us of sweep and the next at 16384x4096: 65.0 and 65.8 (cuda.row); at 2048x32768: 66.7 and 70.7 (cuda.cluster).
    *_forward("rmsnorm", ROW_MOST_COLS, ROW, SWEEP, (_many(16384, 4096, 4096), 46), (_many(FEW_PROGRAMS + 1, 16385, 65536), 46)),
    _shifted("rmsnorm"),
    # 127.4 and 130.6 (row) at 16384x4096, 65.2 and 66.0 at 8192x4096, 65.2 and 66.3 at 4096x8192.
    *_forward("add_rmsnorm", ADDED_ROW_MOST_COLS, ADDED_ROW, ADDED_SWEEP, (_many(4096, 4096, 16384), 35)),
    _shifted("add_rmsnorm", "add_rmsnorm.py"),
    *_gradient("rmsnorm_backward"),
    *_gradient("add_rmsnorm_backward"),
)  # fmt: skip
