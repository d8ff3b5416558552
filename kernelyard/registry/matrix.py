"""Frozen shape matrices: points as people give them, and their layouts. The JSON file of a user's own is in `matrix_file`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

from kernelyard.registry.spec import Scalar, TensorSpec, digest, dtype_name, require


@dataclass(frozen=True, slots=True)
class Point:
    """One row of a shape matrix, before a device is known: sizes in the order of `Op.dims`.

    `layout` of the first tensor is 'contiguous', 'row_strided' (a gap after every row, or whatever the first dimension
    counts), 'transposed' (of two dimensions the first is the one without gaps; of three, the second lies outermost),
    'broadcast' (rows repeat through a stride of 0) or 'offset' (starts one element past a 16-byte boundary), or one of the op's own.
    `statics` also says which optional tensors are not given, ("w", ABSENT), or are, ("bias", GIVEN), unlike in the usual call.
    `tensors` has those that no layout tells of, such as a view with gaps as a running model had it.
    """

    dims: tuple[int, ...]
    dtype: str
    layout: str = "contiguous"
    statics: tuple[tuple[str, Scalar], ...] = ()
    tensors: tuple[tuple[str, TensorSpec], ...] = ()

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
    """A point as JSON. What a point of before has not is left out, so that its hash stays."""
    usual = [list(point.dims), point.dtype, point.layout, [list(pair) for pair in point.statics]]
    return [*usual, *([tensors_payload(point)] if point.tensors else [])]


def point_from(value: list[Any]) -> Point:
    """The point that `point_payload` wrote."""
    dims, dtype, layout, statics, *more = value
    return Point(tuple(dims), dtype, layout, tuple((name, scalar) for name, scalar in statics), tensors_from(more[0]) if more else ())


def tensors_payload(point: Point) -> dict[str, Any]:
    """`Point.tensors` as JSON."""
    return {name: asdict(spec) for name, spec in point.tensors}


def tensors_from(value: Mapping[str, Any]) -> tuple[tuple[str, TensorSpec], ...]:
    """What `tensors_payload` wrote; raises TypeError or DeclarationError for what is no tensor."""
    return tuple((name, TensorSpec(**fields)) for name, fields in sorted(value.items()))


@dataclass(frozen=True)
class Matrix:
    """A named, frozen, hashed list of points of one op.

    `counts` says how often a captured model asked for each point, and is empty where nobody counted. It is no part of what
    the hash says: the same shapes are the same matrix, however long the model ran.
    """

    name: str
    op: str
    points: tuple[Point, ...]
    counts: tuple[int, ...] = ()

    @property
    def held_out(self) -> bool:
        """Whether nothing may be chosen by its points: they are timed for a report, and never tuned."""
        return self.name.split("/")[0] == HELD_OUT

    @cached_property
    def hash(self) -> str:
        """Content hash; stored with every result."""
        return digest([self.op, [point_payload(point) for point in self.points]])


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
