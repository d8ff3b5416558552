"""The author's config of the kernels of softmax, swiglu, rope and vector_add for a workload."""

from __future__ import annotations

from kernelyard.plugins.triton_jit import defaults
from kernelyard.plugins.triton_jit.defaults import FEW_PROGRAMS, block_cols
from kernelyard.registry.spec import DTYPE_BYTES, Config, Workload

PAIRS_PER_THREAD = 64
"""Elements of each of two tiles that a thread holds: 156 registers."""


def row(workload: Workload) -> Config:
    """As rows of any op."""
    return {**defaults.row(workload), "hint": "none", "overlap": False}


def packed(workload: Workload) -> Config:
    """32 elements a thread in 16 registers, so that programs overlap: one row and 32 warps at 32768 columns, two a multiprocessor."""
    cols = block_cols(workload)
    return {"rows_per_program": 1, "num_warps": defaults._power(defaults._clamp(cols // 1024, 1, 32)), "hint": "none", "overlap": False}


def paired_row(workload: Workload) -> Config:
    """As `row` with twice the threads, since each holds two tiles: 32 elements of each, one row and 4 warps at 4096 columns."""
    if workload.device == "cpu":
        return {**defaults._interpreted(block_cols(workload), workload.dim("rows"), PAIRS_PER_THREAD), "overlap": False}
    config = row(workload)
    per_thread = int(config["rows_per_program"]) * block_cols(workload) / (32 * int(config["num_warps"]))
    return {**config, "num_warps": min(2 * int(config["num_warps"]), 32)} if per_thread > 32 else config


def shifted(workload: Workload) -> Config:
    """32 elements a thread; rows together as long as there are two programs a multiprocessor: 4 rows and 16 warps for 1000 rows of 4095."""
    cols, rows = block_cols(workload), workload.dim("rows")
    fit = max(32 * 32 * 32 // cols, 1)
    wanted = _least_above(-(-rows // FEW_PROGRAMS)) if workload.device != "cpu" else 8
    together = defaults._clamp(wanted, 1, min(fit, 8))
    warps = defaults._power(defaults._clamp(together * cols // (32 * 32), 1, 32))
    return {"rows_per_program": together, "num_warps": warps, "hint": "none", "overlap": False}


def sweep(workload: Workload) -> Config:
    """As rows of any op."""
    return {**defaults.sweep(workload), "hint": "none", "overlap": False}


def persistent(workload: Workload) -> Config:
    """32 elements a thread, and as many tiles on their way as shared memory holds of up to 64 KiB each: one of 32768 columns of bf16."""
    cols, rows = block_cols(workload), workload.dim("rows")
    together = defaults._power(defaults._clamp(min(4096 // cols, -(-rows // FEW_PROGRAMS)), 1, 16))
    if workload.device == "cpu":
        together = defaults._together(rows, 32768 // cols, 16)
    warps = defaults._power(defaults._clamp(together * cols // (32 * 32), 1, 32))
    tile_bytes = together * cols * DTYPE_BYTES[workload.dtype] * sum(spec is not None for _, spec in workload.tensors)
    buffers = defaults._clamp(200 * 1024 // tile_bytes, 1, 12)
    per_sm = max(n for n in (1, 2, 4) if n <= buffers)
    stages = 2 if tile_bytes <= 200 * 1024 else 1
    return {
        "rows_per_program": together, "num_warps": warps, "hint": "none", "programs_per_sm": per_sm, "num_stages": stages, "overlap": False,
    }  # fmt: skip


def stream(workload: Workload) -> Config:
    """Two 16-byte loads of each input a thread; one where the array is small."""
    return _blocks(workload, workload.dim("n"))


def stream_persistent(workload: Workload) -> Config:
    """Blocks as in `stream`, eight programs a multiprocessor, two blocks ahead."""
    return {**stream(workload), "programs_per_sm": 4, "num_stages": 3 if workload.device != "cpu" else 1}


def tile(workload: Workload) -> Config:
    """As `stream` where a row is one long one, or wide; rows together where they are narrow."""
    cols, rows = workload.dim("cols"), workload.dim("rows")
    flat = _blocks(workload, rows * cols)
    if long_row(workload):
        return {"rows_per_program": 1, **flat}
    block = defaults._clamp(block_cols(workload), 512, int(flat["block"]))
    together = defaults._power(defaults._clamp(min(int(flat["block"]) // block, rows), 1, 16))
    warps = defaults._power(defaults._clamp(together * block // 256, 1, int(flat["num_warps"])))
    return {"rows_per_program": together, **flat, "block": block, "num_warps": warps}


def tile_persistent(workload: Workload) -> Config:
    """Tiles as in `tile`, four programs a multiprocessor, two tiles ahead."""
    return {**tile(workload), "programs_per_sm": 4, "num_stages": 3 if workload.device != "cpu" else 1}


def rope(workload: Workload) -> Config:
    """A token's heads and 16 pairs a thread; with few tokens heads over many programs; a few tokens together where heads are few."""
    tokens, heads, half = workload.dim("tokens"), workload.dim("heads"), half_block(workload)
    fit = 2048 if tokens * heads * half >= FEW_PROGRAMS * 2048 else 256
    fit = fit if workload.device != "cpu" else 8192
    most = max(heads & -heads, _least_above(heads) if heads <= 8 else 1)
    at_once = defaults._power(defaults._clamp(min(fit // half, most), 1, 64))
    together = defaults._power(defaults._clamp(min(fit // (half * at_once), tokens), 1, 32))
    warps = defaults._power(defaults._clamp(together * at_once * half // (32 * 16), 1, 8))
    if fit == 256:
        warps = defaults._power(defaults._clamp(together * at_once * half // (32 * 4), 1, 8))
    return {"tokens_per_program": together, "heads_per_program": at_once, "num_warps": warps, "hint": "none", "overlap": False}


def half_block(workload: Workload) -> int:
    """The power of two that covers the pairs of a head."""
    return _least_above(max(workload.dim("dim") // 2, 1))


def long_row(workload: Workload) -> bool:
    """Whether swiglu's tensors are one long row: two factors, nothing strided."""
    return workload.has("b") and all(spec.contiguous for _, spec in workload.tensors if spec is not None)


def _blocks(workload: Workload, elements: int) -> Config:
    if workload.device == "cpu":
        return {"block": 16384, "num_warps": 8, "hint": "none", "overlap": False}
    large = elements >= 1 << 20
    return {"block": 2048 if large else 1024, "num_warps": 4, "hint": "none", "overlap": False}


def _least_above(value: int) -> int:
    return 1 << (max(value, 1) - 1).bit_length()
