"""The author's config of each Triton kernel for a workload, and the limits it keeps.

Figures are from one H200 (bf16, device time, caches flushed), registers from compiling for sm_90.
On a CPU a default serves the interpreter, which runs one program at a time: as much as fits in each.
"""

from __future__ import annotations

from kernelyard.registry.spec import DTYPE_BYTES, Config, Workload

MOST_PER_THREAD = 128
"""Elements of a tile that a thread holds as float32: 220 registers of 255; with 256 it spills 640 bytes, and ptxas takes minutes."""
MOST_IN_LOOP = 64
"""The same beside a held weight or a running sum: 166 registers; with 128 a thread spills 24 (sweep) to 112 bytes (persistent)."""
FEW_PROGRAMS = 264
"""Two a multiprocessor on 132: below it a program's latency is the time, so its row is spread over more threads."""


def block_cols(workload: Workload) -> int:
    """The power of two that covers a row: Triton's tiles are powers of two."""
    return max(1 << (workload.dim("cols") - 1).bit_length(), 16) if workload.dim("cols") else 16


def row(workload: Workload) -> Config:
    """64 bf16 elements a thread (eight 16-byte loads in flight): one row and 2 warps at 4096 columns, 97% of a copy.

    With few rows one load a thread, and more threads. With an odd width 16 elements: it is read an element at a time, and 64 took
    167 registers for addresses and masks.
    """
    cols, rows = block_cols(workload), workload.dim("rows")
    if workload.device == "cpu":
        return _interpreted(cols, rows, MOST_PER_THREAD)
    size = DTYPE_BYTES[workload.dtype]
    together = _power(_clamp(2048 // cols, 1, 16)) if rows > FEW_PROGRAMS else 1
    per_thread = 16 // size if rows <= FEW_PROGRAMS else 16 if workload.dim("cols") % 8 else 128 // size
    warps = _power(_clamp(together * cols // (32 * per_thread), 1, 32))
    return {"rows_per_program": together, "num_warps": warps, "hint": "none"}


def persistent(workload: Workload) -> Config:
    """As `row`, two programs a multiprocessor, the next tile loaded one step ahead."""
    on_cpu = workload.device == "cpu"
    tile = _interpreted(block_cols(workload), workload.dim("rows"), MOST_IN_LOOP) if on_cpu else row(workload)
    return {**tile, "programs_per_sm": 2, "num_stages": 2}


def sweep(workload: Workload) -> Config:
    """Blocks of 16384 columns, 32 warps, one row a program: 97.5% of a copy at 32768 columns."""
    block = _clamp(block_cols(workload), 1024, 16384)
    if workload.device != "cpu":
        return {"block": block, "rows_per_program": 1, "num_warps": _power(_clamp(block // 512, 2, 32)), "hint": "none"}
    together = _together(workload.dim("rows"), MOST_IN_LOOP * 32 * 32 // block, 8)
    return {"block": block, "rows_per_program": together, "num_warps": _power(_clamp(together * block // 512, 2, 32)), "hint": "none"}


def _interpreted(cols: int, rows: int, per_thread: int) -> Config:
    together = _together(rows, per_thread * 32 * 32 // cols, 16)
    warps = next(w for w in (32, 16, 8, 4, 2, 1) if w == 1 or together * cols >= 4 * 32 * w)
    return {"rows_per_program": together, "num_warps": warps, "hint": "none"}


def _together(rows: int, fit: int, most: int) -> int:
    """The most rows a program, a power of two, of which more than half exist."""
    return next((n for n in (16, 8, 4, 2) if n <= min(fit, most) and n < 2 * rows), 1)


def _clamp(value: int, least: int, most: int) -> int:
    return max(least, min(most, value))


def _power(value: int) -> int:
    return 1 << max(value, 1).bit_length() - 1
