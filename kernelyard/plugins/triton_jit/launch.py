"""What the kernels' entries share: how a workload's rows are addressed, and what a cache hint means."""

from __future__ import annotations

import math
from dataclasses import dataclass

from kernelyard.registry.spec import DTYPE_BYTES, Config, TensorSpec, Workload

MOST_STEPS = 32
"""Of a loop that is unrolled: 32768 columns in blocks of 1024."""


@dataclass(frozen=True, slots=True)
class RowView:
    """Rows, width and row stride of x, the last two in units of `unit` elements."""

    rows: int
    cols_units: int
    stride_units: int
    unit: int


def row_view(workload: Workload) -> RowView:
    """x as rows. `unit` is the largest power of two up to 16 that divides width and stride.

    A kernel multiplies by it, and so Triton sees that rows start at multiples of it: 8 for a width of 1000, which makes 16-byte accesses.
    """
    rows, cols = workload.dim("rows"), workload.dim("cols")
    stride = row_stride(workload, "x")
    unit = math.gcd(cols, stride, 16)
    return RowView(rows, cols // unit, stride // unit, unit)


def row_stride(workload: Workload, name: str) -> int:
    """Elements between two rows of a tensor; of one row, its width."""
    spec = workload[name]
    return spec.strides[-2] if workload.dim("rows") > 1 and len(spec.shape) > 1 else workload.dim("cols")


def policies(config: Config) -> tuple[str, str, str]:
    """Eviction policies of the last load, of the store, and of a load that is read again. An empty one is the default.

    Never with a cache modifier: ptxas refuses the two together on sm_90.
    """
    load, store = config["hint"] in ("load", "stream"), config["hint"] in ("store", "stream")
    return "evict_first" if load else "", "evict_first" if store else "", "evict_last" if load else ""


def steps(workload: Workload, config: Config) -> int:
    """Blocks in a row, for a kernel that is compiled for that many; 0 where the row is no whole number of them, or of too many.

    A loop of known length is unrolled, so the loads of all its steps are in flight together; of unknown length, those of four at most.
    """
    blocks, rest = divmod(workload.dim("cols"), int(config["block"]))
    return blocks if not rest and blocks <= MOST_STEPS else 0


def sm_count(workload: Workload) -> int:
    """Multiprocessors of the current GPU; elsewhere 132, an H200's, so that code compiled without a GPU is what runs on one."""
    import torch

    if workload.device == "cuda" and torch.cuda.is_available():
        return int(torch.cuda.get_device_properties(torch.cuda.current_device()).multi_processor_count)
    return 132


def vector(workload: Workload) -> int:
    """Elements in 16 bytes."""
    return 16 // DTYPE_BYTES[workload.dtype]


def starts_aligned(spec: TensorSpec) -> bool:
    """Whether every row of a matrix starts at a multiple of 16 bytes, whichever of its last two dimensions has no gaps."""
    unit = 16 // DTYPE_BYTES[spec.dtype]
    outer = [stride for size, stride in zip(spec.shape, spec.strides, strict=True) if stride != 1 and size > 1]
    return spec.aligned and all(stride % unit == 0 for stride in outer)
