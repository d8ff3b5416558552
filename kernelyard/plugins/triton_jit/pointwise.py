"""The Triton kernels of softmax, swiglu, their gradients, rope and vector_add as data: what each supports, what of it is tuned and why."""

from __future__ import annotations

from kernelyard.plugins.triton_jit import pointwise_defaults, spaces
from kernelyard.plugins.triton_jit.defaults import MOST_IN_LOOP, MOST_PER_THREAD, block_cols
from kernelyard.plugins.triton_jit.norms import OVERLAP, rows_start_anywhere
from kernelyard.plugins.triton_jit.pointwise_defaults import half_block
from kernelyard.plugins.triton_jit.rows import DTYPES, rows_support, two_dimensions
from kernelyard.registry.kernel import Kernel, Support
from kernelyard.registry.space import ConfigSpace, Constraint, Parameter
from kernelyard.registry.spec import DTYPE_BYTES, Config, Determinism, Workload

SHARED = 220 * 1024
"""Bytes of shared memory that a multiprocessor of Hopper has for the buffers of all its programs, reductions aside."""
STAGES = Parameter("num_stages", (1, 2, 3, 4), "tiles in flight: one more than the buffers that the next ones arrive in")
PER_SM = Parameter("programs_per_sm", (1, 2, 3, 4, 8), "resident programs: while one reduces or writes, the others' tiles arrive")
BLOCK = Parameter("block", (512, 1024, 2048, 4096, 8192, 16384), "elements a program: 512 keeps a small call on every multiprocessor")
STREAM_WARPS = Parameter("num_warps", (1, 2, 4, 8, 16), "threads for the block: one to eight 16-byte loads of each input a thread")


def _threads(config: Config) -> int:
    return 32 * int(config["num_warps"])


def _in_flight(config: Config, workload: Workload, elements: int) -> int:
    """Bytes of shared memory on a multiprocessor for tiles of so many elements of each input that is as large as the result."""
    inputs = sum(spec is not None for _, spec in workload.tensors)
    return int(config["programs_per_sm"]) * (int(config["num_stages"]) - 1) * inputs * elements * DTYPE_BYTES[workload.dtype]


# Rows -------------------------------------------------------------------------------------------------


def _rows_tile(config: Config, workload: Workload) -> int:
    return int(config["rows_per_program"]) * block_cols(workload)


def _rows_fit(config: Config, workload: Workload) -> bool:
    return _rows_tile(config, workload) <= MOST_IN_LOOP * _threads(config)


def _rows_busy(config: Config, workload: Workload) -> bool:
    return config["num_warps"] == 1 or _rows_tile(config, workload) >= 4 * _threads(config)


def _rows_in_flight(config: Config, workload: Workload) -> bool:
    return _in_flight(config, workload, _rows_tile(config, workload)) <= SHARED


def _row_spread(config: Config, workload: Workload) -> bool:
    return _rows_tile(config, workload) <= MOST_PER_THREAD * _threads(config)


def _row_hints(workload: Workload) -> tuple[Config, ...]:
    return spaces.other_warps(pointwise_defaults.softmax_row(workload), workload)


def _pairs_fit(config: Config, workload: Workload) -> bool:
    return _rows_tile(config, workload) <= pointwise_defaults.PAIRS_PER_THREAD * _threads(config)


CROWDED = f"the tiles in flight would take more than {SHARED >> 10} KiB of shared memory"
ROW = ConfigSpace((*spaces.ROW_PARAMETERS, OVERLAP), spaces.ROW.constraints, pointwise_defaults.softmax_row, _row_hints)
SWEEP = ConfigSpace((*spaces.SWEEP.parameters, OVERLAP), spaces.SWEEP.constraints, pointwise_defaults.sweep)
PERSISTENT = ConfigSpace(
    (*spaces.ROW_PARAMETERS, PER_SM, STAGES, OVERLAP),
    (
        Constraint(_rows_fit, spaces.SPILLS_IN_LOOP), Constraint(_rows_busy, spaces.IDLE), Constraint(_rows_in_flight, CROWDED),
        spaces.PADDED,
    ),
    pointwise_defaults.persistent,
)  # fmt: skip
PACKED_MOST = 128
"""Elements a thread holds two to a register: 122 registers; with 256 it spills 184 bytes."""


def _packed_fits(config: Config, workload: Workload) -> bool:
    return _rows_tile(config, workload) <= PACKED_MOST * _threads(config)


PACKED = ConfigSpace(
    (
        Parameter("rows_per_program", (1, 2), "it is for wide rows"),
        Parameter("num_warps", (1, 2, 4, 8, 16, 32), "32768 columns: 32 registers a thread with 32, 64 with 16: two programs fit"),
        spaces.HINT, OVERLAP,
    ),
    (
        Constraint(_packed_fits, f"a thread would hold more than {PACKED_MOST} elements and spill registers"),
        Constraint(_rows_busy, spaces.IDLE), spaces.PADDED,
    ),
    pointwise_defaults.packed,
)  # fmt: skip
ROW_MOST_COLS = 16384
"""Of 32768 columns one program fits on a multiprocessor: `persistent` is 14% faster. dy and y of 32768 spill 80 bytes a thread."""
PAIRS = Constraint(_pairs_fit, f"a thread would hold more than {pointwise_defaults.PAIRS_PER_THREAD} elements of dy and of y and spill")
PAIRED_ROW = ConfigSpace(ROW.parameters, (PAIRS, Constraint(_rows_busy, spaces.IDLE), spaces.PADDED), pointwise_defaults.paired_row)
PAIRED_PERSISTENT = ConfigSpace(PERSISTENT.parameters, (PAIRS, *PERSISTENT.constraints[1:]), pointwise_defaults.persistent)
SHIFTED = ConfigSpace(
    (
        Parameter("rows_per_program", (1, 2, 4, 8), "rows of one kind, so many times 8 apart; with 8 half the GPU idles at 1000 rows"),
        spaces.WARPS, spaces.HINT, OVERLAP,
    ),
    (Constraint(_row_spread, spaces.SPILLS), Constraint(_rows_busy, spaces.IDLE)),
    pointwise_defaults.shifted,
)  # fmt: skip

# Elements ---------------------------------------------------------------------------------------------


def _block_spread(config: Config, workload: Workload) -> bool:
    return 4 <= int(config["block"]) / _threads(config) <= 64


def _block_in_flight(config: Config, workload: Workload) -> bool:
    return _in_flight(config, workload, int(config["block"])) <= SHARED


def _tile_spread(config: Config, workload: Workload) -> bool:
    return 4 <= int(config["rows_per_program"]) * int(config["block"]) / _threads(config) <= 64


def _tile_in_flight(config: Config, workload: Workload) -> bool:
    return _in_flight(config, workload, int(config["rows_per_program"]) * int(config["block"])) <= SHARED


SPREAD = "a thread would hold under 4 or over 64 elements"
STREAM = ConfigSpace((BLOCK, STREAM_WARPS, spaces.HINT, OVERLAP), (Constraint(_block_spread, SPREAD),), pointwise_defaults.stream)
STREAM_PERSISTENT = ConfigSpace(
    (BLOCK, STREAM_WARPS, spaces.HINT, PER_SM, STAGES, OVERLAP),
    (Constraint(_block_spread, SPREAD), Constraint(_block_in_flight, CROWDED)),
    pointwise_defaults.stream_persistent,
)
TILE_ROWS = Parameter("rows_per_program", (1, 2, 4, 8, 16), "more than one only where rows are narrow and do not follow each other")
TILE = ConfigSpace((TILE_ROWS, BLOCK, STREAM_WARPS, spaces.HINT, OVERLAP), (Constraint(_tile_spread, SPREAD),), pointwise_defaults.tile)
TILE_PERSISTENT = ConfigSpace(
    (TILE_ROWS, BLOCK, STREAM_WARPS, spaces.HINT, PER_SM, STAGES, OVERLAP),
    (Constraint(_tile_spread, SPREAD), Constraint(_tile_in_flight, CROWDED)),
    pointwise_defaults.tile_persistent,
)

# Heads ------------------------------------------------------------------------------------------------


def _heads_fit(config: Config, workload: Workload) -> bool:
    pairs = int(config["tokens_per_program"]) * int(config["heads_per_program"]) * half_block(workload)
    return config["num_warps"] == 1 or 2 <= pairs / _threads(config) <= 32


def _heads_exist(config: Config, workload: Workload) -> bool:
    heads, tokens = int(config["heads_per_program"]), int(config["tokens_per_program"])
    return heads < 2 * max(workload.dim("heads"), 1) and tokens < 2 * max(workload.dim("tokens"), 1)


ROPE = ConfigSpace(
    (
        Parameter("tokens_per_program", (1, 2, 4, 8, 16, 32), "more than one only where a token's heads are few or narrow"),
        Parameter("heads_per_program", (1, 2, 4, 8, 16, 32, 64), "heads that share one load of cosines and sines"),
        STREAM_WARPS, spaces.HINT, OVERLAP,
    ),
    (
        Constraint(_heads_fit, "a thread would hold under 2 or over 32 pairs"),
        Constraint(_heads_exist, "more than half of a program's heads or tokens would not exist"),
    ),
    pointwise_defaults.rope,
)  # fmt: skip


def _kernel(op: str, name: str, summary: str, files: tuple[str, ...] = (), **rest: object) -> Kernel:
    module = rest.pop("module", op)
    entry, sources = f"kernelyard.plugins.triton_jit.{module}:{name}", ("launch.py", "overlap.py", *files)
    return Kernel(f"triton.{name}", op, "triton", summary, entry, files=sources, determinism=Determinism.RUN_TO_RUN, **rest)  # type: ignore[arg-type]


ROWS = Support(("cuda",), DTYPES, most={"rows": 2**31 - 128}, predicates=(two_dimensions,))
HEADS = Support(("cuda",), DTYPES, most={"dim": 8192})
FLAT = Support(("cuda",), DTYPES, contiguous=True)


def _row_kernels(op: str, persistent_cols: int, row: ConfigSpace, persistent: ConfigSpace, *files: str) -> tuple[Kernel, ...]:
    return (
        _kernel(
            op, "row", "a tile of whole rows in registers, read once", files,
            support=rows_support(ROW_MOST_COLS), space=row, priority=30, fallbacks=("triton.sweep",),
        ),
        _kernel(
            op, "persistent", "a fixed grid walks over rows, the next ones on their way to shared memory", files,
            support=rows_support(persistent_cols), space=persistent, priority=25, fallbacks=("triton.sweep",),
        ),
        _kernel(
            op, "sweep", "a sweep over a wide row for its sums, then one that writes, from L2", files,
            support=rows_support(spaces.SWEEP_MOST_COLS), space=SWEEP, priority=20,
        ),
    )  # fmt: skip


def _shifted(op: str, most_cols: int, module: str, *files: str) -> Kernel:
    return _kernel(
        op, "shifted", "rows of one misalignment a program, 16 bytes at a time", ("shifted.py", *files), module=module,
        support=rows_support(most_cols, rows_start_anywhere), space=SHIFTED, priority=40, fallbacks=("triton.row",),
    )  # fmt: skip


def _gated(op: str) -> tuple[Kernel, ...]:
    return (
        _kernel(op, "tile", "one tile a program, one long row of them where all is contiguous", ("glu_tiles.py",),
                support=ROWS, space=TILE, priority=30),
        _kernel(op, "persistent", "a fixed grid walks over tiles, the next ones on their way to shared memory", ("glu_tiles.py",),
                support=ROWS, space=TILE_PERSISTENT, priority=10, fallbacks=("triton.tile",)),
    )  # fmt: skip


HALVES = Support(("cuda",), ("bfloat16", "float16"), most={"cols": spaces.ROW_MOST_COLS, "rows": 2**31 - 128}, predicates=(two_dimensions,))

KERNELS = (
    *_row_kernels("softmax", spaces.ROW_MOST_COLS, ROW, PERSISTENT),
    _shifted("softmax", spaces.ROW_MOST_COLS, "softmax_shifted", "softmax.py"),
    _kernel(
        "softmax", "packed", "whole rows in registers as they were loaded, two elements in each", ("softmax.py",), module="softmax_packed",
        support=HALVES, space=PACKED, priority=28, fallbacks=("triton.row",),
    ),
    *_row_kernels("softmax_backward", ROW_MOST_COLS, PAIRED_ROW, PAIRED_PERSISTENT, "shifted.py"),
    _shifted("softmax_backward", ROW_MOST_COLS, "softmax_backward"),
    *_gated("swiglu"),
    *_gated("swiglu_backward"),
    _kernel(
        "rope", "tile", "a tile of tokens and heads, cosines and sines loaded once for its heads",
        support=HEADS, space=ROPE, priority=30,
    ),
    _kernel("vector_add", "stream", "one block of elements a program", support=FLAT, space=STREAM, priority=30),
    _kernel(
        "vector_add", "persistent", "a fixed grid walks over blocks, the next ones on their way to shared memory",
        support=FLAT, space=STREAM_PERSISTENT, priority=10, fallbacks=("triton.stream",),
    ),
)  # fmt: skip
