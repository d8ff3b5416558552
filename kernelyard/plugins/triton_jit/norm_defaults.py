"""The author's config of the norm kernels and of their gradients for a workload.

Forward it is that of softmax, whose kernels have the same accesses and were measured on an H200; the gradients' follow from registers
and shared memory.
"""

from __future__ import annotations

from kernelyard.plugins.triton_jit import defaults, pointwise_defaults
from kernelyard.plugins.triton_jit.defaults import FEW_PROGRAMS, block_cols
from kernelyard.plugins.triton_jit.launch import vector
from kernelyard.registry.spec import DTYPE_BYTES, Config, Workload

GRADIENT_PER_THREAD = 32
"""Elements of a tile that a thread holds beside the weight and its share of dw, all in float32."""
MULTIPROCESSORS = 132


def row(workload: Workload) -> Config:
    """As softmax's rows, which were measured; on a few rows the weight is loaded beside x."""
    return {**pointwise_defaults.row(workload), "weight": "early" if workload.dim("rows") <= FEW_PROGRAMS else "late"}


def sweep(workload: Workload) -> Config:
    """As softmax's; for rows of 8 KiB blocks of 2048 columns and 8 warps, of 16 KiB 4096 and 16, wider 8192 and 32: 16 bytes a thread.

    On one H200, bf16: (2048, 32768) 66.7 us, 77.9 with 4096 columns and 16 warps; (16384, 4096) 65.0, with hint none 66.8.
    """
    config, kib = pointwise_defaults.sweep(workload), workload.dim("cols") * DTYPE_BYTES[workload.dtype] >> 10
    if workload.device == "cpu" or not 8 <= kib <= 64:
        return config
    warps = 8 if kib < 16 else 16 if kib < 32 else 32
    return {**config, "block": warps * 512 // DTYPE_BYTES[workload.dtype], "num_warps": warps}


def added_row(workload: Workload) -> Config:
    """As rmsnorm's; of a row that fills the multiprocessor's threads the sum is stored at once.

    Of 128 columns launches overlap, which rmsnorm's must not: (32768, 128) on one H200 9.26 us, 10.0 without; max_autotune 9.95.
    """
    config = {**row(workload), "stored": "at_once" if workload.dim("cols") > 16384 else "last"}
    return {**config, "overlap": True} if workload.device != "cpu" and block_cols(workload) == 128 else config


def added_sweep(workload: Workload) -> Config:
    """As softmax's: blocks of 8192 columns and 16 warps."""
    return {**pointwise_defaults.sweep(workload), "second": "inputs"}


def persistent(workload: Workload) -> Config:
    """As rows of any op; a wide row is alone on its multiprocessor, and its weight comes again with each."""
    wide = block_cols(workload) >= 16384
    config = {**defaults.persistent(workload), "weight": "again" if wide else "held", "overlap": False}
    if wide:
        row_bytes = block_cols(workload) * 16 // vector(workload) * (3 if workload.has("residual") else 2)
        config |= {"programs_per_sm": 1, "num_stages": 2 if row_bytes <= 220 * 1024 else 1}
    return config


def shifted(workload: Workload) -> Config:
    """As softmax's: one row and 8 warps at 4095 columns."""
    return pointwise_defaults.shifted(workload)


def gradient_persistent(workload: Workload) -> Config:
    """Two rows of 4096 columns and 8 warps, one program a multiprocessor; below 2048 columns tiles half as large, two programs.

    A thread has 32 elements from 1024 columns on (H200, 8192x1024: 17.2 us, with 16 22.1), 16 below. At 128 columns 64 rows with 32
    elements a thread, one program, are 7% ahead of that (32768x128: 12.0 and 12.9 us), though Triton 3.6 spills there.

    With a row or less for each multiprocessor nothing comes after the first tile: 8 elements a thread, none in flight.

    The interpreter adds one sum pairwise and two sums at once in sequence, which is less exact.
    """
    cols, rows = block_cols(workload), workload.dim("rows")
    if workload.device != "cpu" and rows <= MULTIPROCESSORS:
        warps = defaults._power(defaults._clamp(cols // (32 * 8), 1, 32))
        return {
            "rows_per_program": 1, "num_warps": warps, "programs_per_sm": 1, "num_stages": 1,
            "sums": "joint", "hint": "none", "overlap": True,
        }  # fmt: skip
    wide = cols >= 2048 or cols == 128
    together = min((8192 if wide else 4096) // cols, -(-rows // MULTIPROCESSORS))
    if workload.device == "cpu":
        together = 32 * 32 * GRADIENT_PER_THREAD // cols
    together = defaults._power(defaults._clamp(together, 1, 64))
    per_thread = GRADIENT_PER_THREAD if cols >= 1024 or cols == 128 or workload.device == "cpu" else 16
    warps = defaults._power(defaults._clamp(together * cols // (32 * per_thread), 1, 32))
    return {
        "rows_per_program": together, "num_warps": warps, "programs_per_sm": 1 if wide else 2, "num_stages": 3 if cols <= 8192 else 2,
        "sums": "apart" if workload.device == "cpu" else "joint", "hint": "none", "overlap": True,
    }  # fmt: skip


def gradient_shifted(workload: Workload) -> Config:
    """A row at a time, 16 elements a thread, two programs a multiprocessor."""
    cols = block_cols(workload)
    config = dict(gradient_persistent(workload))
    del config["rows_per_program"]
    warps = defaults._power(defaults._clamp(cols // (32 * 16), 1, 32))
    return {**config, "num_warps": warps, "programs_per_sm": 2 if cols <= 4096 else 1}


def gradient_split(workload: Workload) -> Config:
    """Blocks of 4096 columns, 2 rows at a time and 8 warps: what `gradient_persistent` has of a row of 4096."""
    cols = block_cols(workload)
    block = defaults._clamp(cols, 1024, 4096)
    sums_block = defaults._clamp(cols, 1024, 8192)
    warps = 16 if workload.device == "cpu" else 8
    return {
        "block": block, "rows_per_program": min(warps * 1024 // block, 8), "num_warps": warps, "programs_per_sm": 1, "num_stages": 3,
        "sums_block": sums_block, "sums_warps": defaults._clamp(sums_block // 512, 2, 16), "hint": "none", "overlap": True,
    }  # fmt: skip
