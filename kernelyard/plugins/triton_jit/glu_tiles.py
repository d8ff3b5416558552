"""What swiglu and its gradient share: two tensors or packed halves, seen as tiles of rows."""

# A Triton function is typed by its compiler, not by mypy.
# mypy: disable-error-code="untyped-decorator, no-untyped-def"

import math
from dataclasses import dataclass
from typing import Any

import triton
import triton.language as tl

from kernelyard.plugins.triton_jit.launch import policies, row_stride
from kernelyard.plugins.triton_jit.overlap import overlaps
from kernelyard.registry.spec import Config, Workload


@dataclass(frozen=True, slots=True)
class GluView:
    """Rows and columns of one factor, row strides in elements, and the power of two up to 16 that divides all but the rows.

    `dy_stride` is that of the gradient's first argument, 0 where there is none. Packed factors lie in one tensor.
    """

    rows: int
    cols: int
    a_stride: int
    b_stride: int
    dy_stride: int
    packed: bool

    @property
    def unit(self) -> int:
        """As `launch.row_view` has it: what a kernel multiplies by, so that Triton sees where rows may start."""
        return math.gcd(self.cols, self.a_stride, self.b_stride, self.dy_stride, 16)


def glu_view(workload: Workload) -> GluView:
    """The factors as rows; as one long row where they are two and all tensors are contiguous."""
    rows, cols, packed = workload.dim("rows"), workload.dim("cols"), not workload.has("b")
    names = [name for name in ("a", "b", "dy") if workload.has(name)] if not packed else []
    if names and all(workload[name].contiguous for name in names):
        return GluView(min(rows, 1), rows * cols, rows * cols, rows * cols, rows * cols if "dy" in names else 0, False)
    a_stride = 2 * cols if packed and rows <= 1 else row_stride(workload, "a")
    dy_stride = row_stride(workload, "dy") if workload.has("dy") else 0
    return GluView(rows, cols, a_stride, a_stride if packed else row_stride(workload, "b"), dy_stride, packed)


def grid(view: GluView, config: Config) -> int:
    """Tiles."""
    return int(triton.cdiv(view.rows, int(config["rows_per_program"])) * triton.cdiv(view.cols, int(config["block"])))


def tile_constants(workload: Workload, config: Config, view: GluView) -> dict[str, Any]:
    """What is fixed at compile time in every kernel of tiles."""
    load, store, _ = policies(config)
    block = int(config["block"])
    return {
        "UNIT": view.unit, "ROWS": int(config["rows_per_program"]), "BLOCK": block, "PACKED": view.packed,
        "WIDE": view.cols + block > 2**31 - 1, "LOAD": load, "STORE": store, "PDL": overlaps(config),
    }  # fmt: skip


@triton.jit
def corner(tile, cols, ROWS: tl.constexpr, BLOCK: tl.constexpr, WIDE: tl.constexpr):
    """First row and first column of a tile; tiles of one row of tiles follow each other."""
    across = tl.cdiv(cols, BLOCK)
    first = tile % across
    if WIDE:
        first = first.to(tl.int64)
    return tile // across * ROWS, first * BLOCK
