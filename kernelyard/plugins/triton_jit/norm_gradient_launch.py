"""The launches of `norm_gradient`: which tensors, grid and workspace; rmsnorm_backward and add_rmsnorm_backward differ in names."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import triton
from torch import Tensor

from kernelyard.plugins.triton_jit import norm_gradient, norm_gradient_shifted
from kernelyard.plugins.triton_jit.defaults import block_cols
from kernelyard.plugins.triton_jit.launch import policies, row_stride, sm_count, vector
from kernelyard.plugins.triton_jit.overlap import overlaps
from kernelyard.plugins.triton_jit.shifted import period
from kernelyard.registry.backend import TritonLaunch
from kernelyard.registry.spec import Config, TensorSpec, Workload

SHARE = 32
"""Columns of the workspace come in multiples of 128 bytes."""
Given = tuple[Tensor, Tensor, Tensor | None, Tensor | None, float, float]
"""dy, x, dr, w, eps, offset: what the op's arguments are called in `norm_gradient`."""


@dataclass(frozen=True)
class Rows:
    """A workload's rows as `norm_gradient` addresses them: sizes and strides in units of `unit` elements."""

    rows: int
    cols: int
    unit: int
    dy: int
    x: int
    dr: int

    @property
    def width(self) -> int:
        """Elements of a row of the workspace."""
        return int(triton.cdiv(self.cols * self.unit, SHARE)) * SHARE


def rows_of(workload: Workload, x: str) -> Rows:
    """`x` names the tensor that was normalised."""
    rows, cols = workload.dim("rows"), workload.dim("cols")
    strides = [row_stride(workload, name) for name in ("dy", x)]
    strides.append(row_stride(workload, "dr") if workload.has("dr") else cols)
    unit = math.gcd(cols, *strides, 16)
    return Rows(rows, cols // unit, unit, *(stride // unit for stride in strides))


def persistent(workload: Workload, config: Config, x: str, given: Callable[..., Given]) -> TritonLaunch:
    """`programs_per_sm` programs on each multiprocessor, or one a tile where there are fewer; of more than one the total."""
    view = rows_of(workload, x)
    programs = min(triton.cdiv(view.rows, int(config["rows_per_program"])), sm_count(workload) * int(config["programs_per_sm"]))
    alone = programs == 1
    constants = {**_constants(workload, config, view), **_tile(workload, config), "ALONE": alone}

    def arguments(outputs: tuple[Tensor, ...], *args: Any) -> tuple[Any, ...]:
        dy, values, dr, w, eps, offset = given(*args)
        share = outputs[1 if alone else 2] if w is not None else None
        sizes = (view.rows, view.cols, view.dy, view.x, view.dr)
        return outputs[0], share, dy, values, dr, w, *sizes, float(eps), float(offset)

    return TritonLaunch(
        norm_gradient.persistent_kernel, (programs, 1, 1), arguments, constants, num_warps=int(config["num_warps"]),
        workspace=() if alone else _shares(workload, view, programs),
        then=None if alone else _total(workload, config, view, programs),
    )  # fmt: skip


def shifted(workload: Workload, config: Config, x: str, given: Callable[..., Given]) -> TritonLaunch:
    """As many programs for each kind of row, `programs_per_sm` on each multiprocessor or one a row; then the total."""
    view, kinds = rows_of(workload, x), period(workload)
    most = max(sm_count(workload) * int(config["programs_per_sm"]) // kinds, 1)
    programs = kinds * min(triton.cdiv(view.rows, kinds), most)
    constants = {
        **_constants(workload, config, view), "COLS": block_cols(workload), "STAGES": int(config["num_stages"]),
        "JOINT": config["sums"] == "joint", "VECTOR": vector(workload), "PERIOD": kinds,
    }  # fmt: skip
    del constants["UNIT"]

    def arguments(outputs: tuple[Tensor, ...], *args: Any) -> tuple[Any, ...]:
        dy, values, dr, w, eps, offset = given(*args)
        share = outputs[2] if w is not None else None
        return outputs[0], share, dy, values, dr, w, view.rows, view.cols * view.unit, float(eps), float(offset)

    return TritonLaunch(
        norm_gradient_shifted.shifted_kernel, (programs, 1, 1), arguments, constants, num_warps=int(config["num_warps"]),
        workspace=_shares(workload, view, programs), then=_total(workload, config, view, programs),
    )  # fmt: skip


def split(workload: Workload, config: Config, x: str, given: Callable[..., Given]) -> TritonLaunch:
    """A program a row for the sums; then `programs_per_sm` programs for all blocks of columns and slices of rows; then the total."""
    view, block = rows_of(workload, x), int(config["block"])
    constants = _constants(workload, config, view)
    blocks, together = triton.cdiv(view.cols * view.unit, block), int(config["rows_per_program"])
    tiles = triton.cdiv(view.rows, together)
    slices = max(min(sm_count(workload) * int(config["programs_per_sm"]) // max(blocks, 1), tiles), 1)

    def sums(outputs: tuple[Tensor, ...], *args: Any) -> tuple[Any, ...]:
        dy, values, _, w, eps, offset = given(*args)
        return outputs[-1], dy, values, w, view.rows, view.cols, view.dy, view.x, float(eps), float(offset)

    def columns(outputs: tuple[Tensor, ...], *args: Any) -> tuple[Any, ...]:
        dy, values, dr, w, _, offset = given(*args)
        share = outputs[2] if w is not None else None
        sizes = (view.rows, triton.cdiv(tiles, slices) * together, view.cols, view.dy, view.x, view.dr)
        return outputs[0], share, outputs[-1], dy, values, dr, w, *sizes, float(offset)

    tile = {**constants, "ROWS": together, "BLOCK": block, "STAGES": int(config["num_stages"])}
    second = TritonLaunch(
        norm_gradient.columns_kernel, (blocks, slices if view.rows else 0, 1), columns, tile, num_warps=int(config["num_warps"]),
        then=_total(workload, config, view, slices if view.rows else 0), pdl=overlaps(config),
    )  # fmt: skip
    kept = {name: constants[name] for name in ("UNIT", "HAS_WEIGHT")}
    first = {**kept, "BLOCK": int(config["sums_block"]), "PDL": False}
    work = (*_shares(workload, view, slices), TensorSpec((view.rows, 2), "float32"))
    grid = (view.rows if view.cols else 0, 1, 1)
    return TritonLaunch(norm_gradient.sums_kernel, grid, sums, first, num_warps=int(config["sums_warps"]), workspace=work, then=second)


def _tile(workload: Workload, config: Config) -> dict[str, Any]:
    """Whole rows. Where all threads lie along a row, rows are added in a thread's own registers, and so at once."""
    along = 32 * int(config["num_warps"]) * vector(workload)
    return {
        "ROWS": int(config["rows_per_program"]), "COLS": block_cols(workload), "STAGES": int(config["num_stages"]),
        "FOLD": along <= block_cols(workload), "JOINT": config["sums"] == "joint",
    }  # fmt: skip


def _constants(workload: Workload, config: Config, view: Rows) -> dict[str, Any]:
    load, store, _ = policies(config)
    return {
        "UNIT": view.unit, "WIDTH": view.width, "HAS_WEIGHT": workload.has("w"), "HAS_DR": workload.has("dr"),
        "LOAD": load, "STORE": store, "PDL": overlaps(config),
    }  # fmt: skip


def _shares(workload: Workload, view: Rows, programs: int) -> tuple[TensorSpec, ...]:
    return (TensorSpec((programs, view.width), "float32"),) if workload.has("w") else ()


def _total(workload: Workload, config: Config, view: Rows, shares: int) -> TritonLaunch | None:
    """One warp's 128 bytes of a row a program, every share in registers at once: what there is to do is one trip to L2."""
    if not workload.has("w"):
        return None
    together = max(min(triton.next_power_of_2(max(shares, 1)), 256), 4)
    block = 2048 if workload.device == "cpu" else SHARE  # the interpreter runs one program after the other
    constants = {"UNIT": view.unit, "WIDTH": view.width, "ROWS": together, "BLOCK": block, "PDL": overlaps(config)}

    def arguments(outputs: tuple[Tensor, ...], *args: Any) -> tuple[Any, ...]:
        return outputs[1], outputs[2], shares, view.cols

    grid = (triton.cdiv(view.cols * view.unit, block), 1, 1)
    return TritonLaunch(norm_gradient.total_kernel, grid, arguments, constants, num_warps=8, pdl=overlaps(config))
