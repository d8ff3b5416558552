"""The author's config of the kernels of softmax, swiglu, rope and vector_add for a workload."""

from __future__ import annotations

from kernelyard.plugins.triton_jit import defaults
from kernelyard.plugins.triton_jit.defaults import FEW_PROGRAMS, block_cols
from kernelyard.registry.spec import DTYPE_BYTES, Config, Workload

PAIRS_PER_THREAD = 64
"""Elements of each of two tiles that a thread holds: 156 registers."""


def row(workload: Workload) -> Config:
    """64 bytes of x a thread, where rows are narrow or few 32: one row and 4 warps at 4096 columns (99% of a copy), 2 and 2 at 1024.

    With 128 bytes (2 warps at 4096) it is equal, with 256 a quarter slower. Overlapping launches take 2 to 5% off, 28% of one row alone; of
    128 columns, programs that wait take the place of those that work (16% slower).
    """
    cols, rows, size = block_cols(workload), workload.dim("rows"), DTYPE_BYTES[workload.dtype]
    if workload.device == "cpu":
        return {**defaults.row(workload), "hint": "none", "overlap": False}
    together = defaults._power(defaults._clamp(2048 // cols, 1, 16)) if rows > FEW_PROGRAMS else 1
    narrow = rows <= FEW_PROGRAMS or cols < 512 or workload.dim("cols") % 8 != 0
    warps = defaults._power(defaults._clamp(together * cols * size // (32 * (32 if narrow else 64)), 1, 32))
    return {"rows_per_program": together, "num_warps": warps, "hint": "none", "overlap": cols >= 512}


def softmax_row(workload: Workload) -> Config:
    """As `row`; where a quarter of a block of 1024 columns is empty, a row and a warp each, nothing overlapping.

    (4096, 768) on one H200: 5.01 us, with two rows and two warps 5.54, overlapping 5.31; quack 4.98 in the same run.
    """
    config = row(workload)
    if workload.device == "cpu" or workload.dim("rows") <= FEW_PROGRAMS or not 512 < workload.dim("cols") <= 768:
        return config
    return {**config, "rows_per_program": 1, "num_warps": 1, "overlap": False}


def shifted(workload: Workload) -> Config:
    """One row, 32 bytes of it a thread: 8 warps at 4095 columns of bf16. Two rows are 20% slower, four 80%."""
    cols = block_cols(workload)
    together = min(max(32 * 32 * 32 // cols, 1), 8) if workload.device == "cpu" else 1
    warps = defaults._power(defaults._clamp(together * cols * DTYPE_BYTES[workload.dtype] // (32 * 32), 1, 32))
    return {"rows_per_program": together, "num_warps": warps, "hint": "none", "overlap": workload.device != "cpu"}


def sweep(workload: Workload) -> Config:
    """Blocks of 8192 columns and 16 warps, the first sweep told to stay in L2: 4% ahead of 16384 and 16 warps, 26% of 8192 and 32."""
    if workload.device == "cpu":
        return {**defaults.sweep(workload), "hint": "none", "overlap": False}
    block = defaults._clamp(block_cols(workload), 1024, 8192)
    return {"block": block, "rows_per_program": 1, "num_warps": block // 512, "hint": "load", "overlap": False}


def persistent(workload: Workload) -> Config:
    """32 elements a thread. Wide rows: one program a multiprocessor and two rows ahead, where shared memory holds them; narrow: eight, one.

    At 32768 columns of bf16 one row ahead is 36% slower than two, three gain nothing. At 4096 `row` is 8% faster than any of these.
    """
    cols, rows = block_cols(workload), workload.dim("rows")
    together = defaults._power(defaults._clamp(min(4096 // cols, -(-rows // FEW_PROGRAMS)), 1, 16))
    if workload.device == "cpu":
        together = defaults._together(rows, 32768 // cols, 16)
    warps = defaults._power(defaults._clamp(together * cols // (32 * 32), 1, 32))
    tile_bytes = together * cols * DTYPE_BYTES[workload.dtype] * sum(spec is not None for _, spec in workload.tensors)
    buffers = 200 * 1024 // tile_bytes
    per_sm, stages = (
        (1, min(buffers, 2) + 1) if cols >= 16384 else (max(n for n in (1, 2, 4, 8) if n <= max(buffers, 1)), min(buffers, 1) + 1)
    )
    return {
        "rows_per_program": together, "num_warps": warps, "hint": "none", "programs_per_sm": per_sm, "num_stages": stages, "overlap": False,
    }  # fmt: skip


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


def stream(workload: Workload) -> Config:
    """Two 16-byte loads of each input a thread, launches overlapping: of bf16 17% ahead of torch.add at 2^20 elements, 2% at 2^24."""
    return _blocks(workload, workload.dim("n"))


def stream_persistent(workload: Workload) -> Config:
    """Blocks as in `stream`, four programs a multiprocessor, two blocks ahead: 6% behind `stream` at 268 million elements, and 2 at 17."""
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
    whole = _least_above(heads) * half
    if fit == 256 < whole <= 512 and tokens >= FEW_PROGRAMS:  # 2.89 us, and 3.74 with five heads in two programs, at 1000x5x96 (H200)
        at_once, together, warps = whole // half, 1, 2
    return {
        "tokens_per_program": together,
        "heads_per_program": at_once,
        "num_warps": warps,
        "hint": "none",
        "overlap": workload.device != "cpu",
    }


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
    return {"block": 2048 if large else 1024, "num_warps": 4, "hint": "none", "overlap": True}


def _least_above(value: int) -> int:
    return 1 << (max(value, 1) - 1).bit_length()
