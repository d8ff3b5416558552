"""Frozen shape matrices: points as people give them, their layouts, and the JSON file of a user's own."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernelyard.errors import UsageError
from kernelyard.registry.spec import DeclarationError, Scalar, TensorSpec, digest, dtype_name, require

if TYPE_CHECKING:
    from kernelyard.registry.op import Op


@dataclass(frozen=True, slots=True)
class Point:
    """One row of a shape matrix, before a device is known: sizes in the order of `Op.dims`.

    `layout` of the first tensor is 'contiguous', 'row_strided' (a gap after every row, or whatever the first dimension
    counts), 'transposed' (of two dimensions the first is the one without gaps; of three, the second lies outermost),
    'broadcast' (rows repeat through a stride of 0) or 'offset' (starts one element past a 16-byte boundary), or one of the op's own.
    `statics` also says which optional tensors are not given, ("w", ABSENT), or are, ("bias", GIVEN), unlike in the usual call.
    """

    dims: tuple[int, ...]
    dtype: str
    layout: str = "contiguous"
    statics: tuple[tuple[str, Scalar], ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "dims", tuple(int(size) for size in self.dims))
        object.__setattr__(self, "dtype", dtype_name(self.dtype))
        require(self.layout.isidentifier(), f"layout '{self.layout}' is no name; there are {', '.join(LAYOUTS)}, and an op's own")
        require(all(size >= 0 for size in self.dims), f"dims {self.dims} have a negative size")
        require(math.prod(max(size, 1) for size in self.dims) < 2**63, f"dims {self.dims} pass 2^63 elements: no tensor is so large")


LAYOUTS = ("contiguous", "row_strided", "transposed", "broadcast", "offset")
ABSENT, GIVEN = "absent", "given"
HELD_OUT = "held_out"


def point_payload(point: Point) -> list[Any]:
    """A point as JSON."""
    return [list(point.dims), point.dtype, point.layout, [list(pair) for pair in point.statics]]


def point_from(value: list[Any]) -> Point:
    """The point that `point_payload` wrote."""
    dims, dtype, layout, statics = value
    return Point(tuple(dims), dtype, layout, tuple((name, scalar) for name, scalar in statics))


@dataclass(frozen=True)
class Matrix:
    """A named, frozen, hashed list of points of one op."""

    name: str
    op: str
    points: tuple[Point, ...]

    @property
    def held_out(self) -> bool:
        """Whether nothing may be chosen by its points: they are timed for a report, and never tuned."""
        return self.name.split("/")[0] == HELD_OUT

    @cached_property
    def hash(self) -> str:
        """Content hash; stored with every result."""
        return digest([self.op, [[p.dims, p.dtype, p.layout, p.statics] for p in self.points]])


def collapse(spec: TensorSpec, keep: int) -> TensorSpec:
    """The spec with `keep` dimensions: the leading ones as one where the strides allow it, or ones put before.

    With keep=2, (2, 8, 64) becomes (16, 64) and (64,) becomes (1, 64). What can't be so viewed stays.
    """
    shape, strides = spec.shape, spec.strides
    if len(shape) < keep:
        missing = keep - len(shape)
        return TensorSpec((1,) * missing + shape, spec.dtype, (max(spec.numel, 1),) * missing + strides, spec.aligned)
    lead = len(shape) - keep + 1
    steps = [(n, s) for n, s in zip(shape[:lead], strides[:lead], strict=True) if n != 1]
    if lead == 1 or (spec.numel and any(outer != n * inner for (_, outer), (n, inner) in pairwise(steps))):
        return spec
    step = steps[-1][1] if steps else math.prod(shape[lead:])
    return TensorSpec((math.prod(shape[:lead]), *shape[lead:]), spec.dtype, (step, *strides[lead:]), spec.aligned)


def lay_out(spec: TensorSpec, layout: str) -> TensorSpec:
    """The same shape and dtype under a layout of `Point.layout`."""
    require(layout in LAYOUTS, f"layout '{layout}' is not one of {', '.join(LAYOUTS)}")
    if layout == "contiguous":
        return spec
    if layout == "offset":
        return TensorSpec(spec.shape, spec.dtype, spec.strides, aligned=False)
    require(len(spec.shape) in (2, 3), f"layout '{layout}' is for two dimensions or three, not {spec.shape}")
    (rows, *_), (row, *inner) = spec.shape, spec.strides
    turned = (1, max(rows, 1)) if len(spec.shape) == 2 else (inner[0], max(rows, 1) * inner[0], 1)
    strides = {"row_strided": (row + 8, *inner), "transposed": turned, "broadcast": (0, *inner)}[layout]
    return TensorSpec(spec.shape, spec.dtype, strides, spec.aligned)


def read_matrix(path: Path, find_op: Callable[[str], Op]) -> tuple[Matrix, ...]:
    """Matrices from a user's JSON file, one for each op in it; raises UsageError that says which point is wrong.

    {"name": "mine", "points": [{"op": "rmsnorm", "shape": [16, 4096], "dtype": "bf16"}, ...]}
    """
    name, points = _content(path)
    by_op: dict[str, list[Point]] = {}
    for number, row in enumerate(points, 1):
        try:
            op, point = find_op(row["op"]), _point(row)
            op.workload(point)
        except (KeyError, TypeError, AttributeError, DeclarationError) as error:
            raise _unusable(path, f"point {number}, {row!r}: {_told(error)}") from error
        by_op.setdefault(op.name, []).append(point)
    return tuple(Matrix(name, op, tuple(points)) for op, points in by_op.items())


def _content(path: Path) -> tuple[str, list[Any]]:
    try:
        content = json.loads(path.read_text())
        name, points = content.get("name", path.stem), content["points"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _unusable(path, _told(error)) from error
    if not isinstance(name, str) or not isinstance(points, list) or not points:
        raise _unusable(path, "it has no points" if points == [] else '"name" must be a text and "points" a list')
    return name, points


def _point(row: Mapping[str, Any]) -> Point:
    unknown = set(row) - {"op", "shape", "dtype", "layout", "statics"}
    require(not unknown, f"unknown {', '.join(sorted(unknown))}")
    shape = row["shape"]
    require(isinstance(shape, list) and all(type(size) is int for size in shape), f"shape {shape!r} is not a list of whole numbers")
    statics = tuple(sorted(row.get("statics", {}).items()))
    return Point(tuple(shape), row.get("dtype", "float32"), row.get("layout", "contiguous"), statics)


def _told(error: Exception) -> str:
    return f"{error.args[0]!r} is missing" if isinstance(error, KeyError) else str(error)


def _unusable(path: Path, problem: str) -> UsageError:
    shape = '{"name": "mine", "points": [{"op": "rmsnorm", "shape": [16, 4096], "dtype": "bf16"}]}'
    return UsageError(f"matrix file {path} can't be used: {problem}.", do=f"It must read {shape}.")
