"""What of the Triton kernels is tuned, the reason for each range, and the author's defaults.

Figures are from one H200 (bf16, device time, caches flushed) unless said otherwise.
"""

from __future__ import annotations

from kernelyard.registry.space import ConfigSpace, Constraint, Parameter
from kernelyard.registry.spec import DTYPE_BYTES, Config, Workload

ROW_MOST_COLS = 32768
"""One pass at 32768 columns already stops at 79% of a copy; wider rows are `sweep`'s."""
PERSISTENT_MOST_COLS = 8192
"""The weight and a tile of x both stay in registers: 16384 columns of each leave none for the next tile."""
SWEEP_MOST_COLS = 2**30
"""Column offsets are 32-bit."""

MOST_PER_THREAD = 128
"""Elements of a tile a thread holds as float32: 128 of 255 registers, and none spilled at sm_90; 256 spill."""
FEW_PROGRAMS = 264
"""Two a multiprocessor on 132: below it a program's latency is the time, so its row is spread over more threads."""

WARPS = "1 to 32 warps: 2 are best at 4096 columns of many rows, 16 where one row is all there is"
ROWS = "rows a program: more than one only fills a thread's 16-byte loads where rows are narrow"
HINT = "'stream' marks x and y evict_first, 97% of a copy at 4096 columns; 'none' leaves y in L2 for who reads it next"


def block_cols(workload: Workload) -> int:
    """The power of two that covers a row: Triton's tiles are powers of two."""
    return max(1 << (workload.dim("cols") - 1).bit_length(), 16) if workload.dim("cols") else 16


def _per_thread(config: Config, cols: int) -> float:
    return int(config["rows_per_program"]) * cols / (32 * int(config["num_warps"]))


def _row_fits(config: Config, workload: Workload) -> bool:
    return _per_thread(config, block_cols(workload)) <= MOST_PER_THREAD


def _row_busy(config: Config, workload: Workload) -> bool:
    return config["num_warps"] == 1 or _per_thread(config, block_cols(workload)) >= 4


def _rows_exist(config: Config, workload: Workload) -> bool:
    return config["rows_per_program"] == 1 or int(config["rows_per_program"]) < 2 * workload.dim("rows")


def _sweep_fits(config: Config, workload: Workload) -> bool:
    return _per_thread(config, int(config["block"])) <= MOST_PER_THREAD


def _sweep_busy(config: Config, workload: Workload) -> bool:
    return _per_thread(config, int(config["block"])) >= 4


def _sweep_needed(config: Config, workload: Workload) -> bool:
    return config["block"] == 1024 or int(config["block"]) <= block_cols(workload)


SPILLS = Constraint(_row_fits, f"a thread would hold more than {MOST_PER_THREAD} elements and spill registers")
IDLE = Constraint(_row_busy, "a thread would hold fewer than 4 elements: most of the warps idle")
PADDED = Constraint(_rows_exist, "more than half of a program's rows would not exist")


def _clamp(value: int, least: int, most: int) -> int:
    return max(least, min(most, value))


def _power(value: float) -> int:
    return 1 << max(int(value), 1).bit_length() - 1


def row_default(workload: Workload) -> Config:
    """64 bf16 elements a thread (eight 16-byte loads in flight); with few rows, or an odd width, a quarter or less and more threads.

    An odd width is read an element at a time: 64 of them took 167 registers for addresses and masks (sm_90).
    On a CPU the interpreter runs a program at a time: as much as fits in each.
    """
    cols, rows = block_cols(workload), workload.dim("rows")
    if workload.device == "cpu":
        return _interpreted_row(cols, rows)
    size = DTYPE_BYTES[workload.dtype]
    together = _power(_clamp(2048 // cols, 1, 16)) if rows > FEW_PROGRAMS else 1
    per_thread = 16 // size if rows <= FEW_PROGRAMS else 16 if workload.dim("cols") % 8 else 128 // size
    warps = _power(_clamp(together * cols // (32 * per_thread), 1, 32))
    return {"rows_per_program": together, "num_warps": warps, "hint": "stream"}


def _interpreted_row(cols: int, rows: int) -> Config:
    most = _clamp(_power(MOST_PER_THREAD * 32 * 32 / cols), 1, 16)
    together = next((n for n in (16, 8, 4, 2) if n <= most and n < 2 * rows), 1)
    warps = next(w for w in (32, 16, 8, 4, 2, 1) if w == 1 or together * cols >= 4 * 32 * w)
    return {"rows_per_program": together, "num_warps": warps, "hint": "none"}


def row_hints(workload: Workload) -> tuple[Config, ...]:
    """The neighbours of the default in warps: the axis that matters most."""
    default = row_default(workload)
    near = [{**default, "num_warps": w} for w in (int(default["num_warps"]) // 2, 2 * int(default["num_warps"])) if 1 <= w <= 32]
    return tuple(config for config in near if _row_fits(config, workload) and _row_busy(config, workload))


def sweep_default(workload: Workload) -> Config:
    """Blocks of 16384 columns and 32 warps: 97.5% of a copy at 32768 columns."""
    cols = block_cols(workload)
    block = _clamp(cols, 1024, 16384)
    if workload.device == "cpu":
        together = next((n for n in (8, 4, 2) if n < 2 * workload.dim("rows")), 1)
        return {"block": block, "rows_per_program": together, "num_warps": _power(_clamp(block // 512, 2, 32)), "hint": "none"}
    return {"block": block, "rows_per_program": 1, "num_warps": _power(_clamp(block // 512, 2, 32)), "hint": "stream"}


def persistent_default(workload: Workload) -> Config:
    """As `row`, two programs a multiprocessor, the next tile loaded one step ahead."""
    row = row_default(workload)
    return {**row, "programs_per_sm": 2, "num_stages": 2}


def stream_default(workload: Workload) -> Config:
    """Eight elements a thread twice over: 32 bytes of each input in flight; the interpreter gets the largest block."""
    if workload.device == "cpu":
        return {"block": 16384, "num_warps": 8, "hint": "none"}
    block = 2048 if workload.dim("n") >= 1 << 20 else 1024
    return {"block": block, "num_warps": 4, "hint": "stream"}


ROW = ConfigSpace(
    parameters=(
        Parameter("rows_per_program", (1, 2, 4, 8, 16), ROWS),
        Parameter("num_warps", (1, 2, 4, 8, 16, 32), WARPS),
        Parameter("hint", ("stream", "none"), HINT),
    ),
    constraints=(SPILLS, IDLE, PADDED),
    default=row_default,
    hints=row_hints,
)

SWEEP = ConfigSpace(
    parameters=(
        Parameter("block", (1024, 2048, 4096, 8192, 16384), "columns a step: 16384 is best at 32768; 32768 in one step is `row`'s"),
        Parameter("rows_per_program", (1, 2, 4, 8), "rows a program: one keeps the row in L2 between sweeps; more serve narrow rows"),
        Parameter("num_warps", (2, 4, 8, 16, 32), WARPS),
        Parameter("hint", ("stream", "none"), "'stream' keeps x for the second sweep (evict_last), then lets x and y go (evict_first)"),
    ),
    constraints=(
        Constraint(_sweep_fits, SPILLS.reason),
        Constraint(_sweep_busy, IDLE.reason),
        Constraint(_sweep_needed, "the block is larger than the row"),
        PADDED,
    ),
    default=sweep_default,
)

PERSISTENT = ConfigSpace(
    parameters=(
        *ROW.parameters,
        Parameter("programs_per_sm", (1, 2, 4, 8), "resident programs: enough to hide latency, few enough that the weight is read rarely"),
        Parameter("num_stages", (1, 2, 3), "tiles in flight: 1 loads when the last is stored, more prefetch through shared memory"),
    ),
    constraints=(SPILLS, IDLE, PADDED),
    default=persistent_default,
)

STREAM = ConfigSpace(
    parameters=(
        Parameter("block", (512, 1024, 2048, 4096, 8192, 16384), "elements a program: 512 keeps a small call on every multiprocessor"),
        Parameter("num_warps", (2, 4, 8, 16), "threads for the block: 8 to 64 elements each, one to eight 16-byte loads of each input"),
        Parameter("hint", ("stream", "none"), "'stream' marks everything evict_first: nothing is read twice"),
    ),
    constraints=(
        Constraint(lambda c, w: 4 <= int(c["block"]) / (32 * int(c["num_warps"])) <= 64, "a thread would hold under 4 or over 64 elements"),
    ),
    default=stream_default,
)
