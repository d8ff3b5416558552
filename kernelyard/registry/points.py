"""From a workload that a call asked for back to the matrix point, or the words on a command line, that ask for the same one."""

from __future__ import annotations

from collections.abc import Iterator

from kernelyard.errors import KernelyardError
from kernelyard.registry.matrix import ABSENT, GIVEN, LAYOUTS, Point
from kernelyard.registry.op import Op
from kernelyard.registry.spec import DeclarationError, Scalar, Workload


def point_of(op: Op, workload: Workload) -> Point | None:
    """The point whose workload this is, by a layout's name where one says it, else with the very strides; None where there is none.

    A point is only given when it was seen to lead back to the workload's key: a choice made for it serves the call.
    """
    for point in _candidates(op, workload):
        made = _made(op, point, workload)
        if made is not None and made.key() == workload.key():
            return point
    return None


def _made(op: Op, point: Point, workload: Workload) -> Workload | None:
    """The point's workload; None for a layout that these sizes, or this op, can't have."""
    try:
        return op.workload(point, workload.device)
    except (KernelyardError, DeclarationError):
        return None


def command_for(op: Op, workload: Workload) -> str:
    """The command that tunes this workload alone; empty where no shape in words says it."""
    point = point_of(op, workload)
    if point is None or point.tensors:
        return ""
    return f"kernelyard tune {op.name} --shape {shape_text(point)} --dtype {point.dtype} --device {workload.device}"


def shape_text(point: Point) -> str:
    """What `--shape` takes: `1x16x4096x4096:linear,bias=given`."""
    words = [] if point.layout == "contiguous" else [point.layout]
    words += [f"{name}={str(value).lower() if isinstance(value, bool) else value}" for name, value in point.statics]
    return "x".join(map(str, point.dims)) + (":" + ",".join(words) if words else "")


def _candidates(op: Op, workload: Workload) -> Iterator[Point]:
    """Points that may be it, the plainest first."""
    dims, statics = tuple(size for _, size in workload.dims), _statics(op, workload)
    usual = Point(dims, workload.dtype, statics=statics)
    yield usual
    for layout in (*LAYOUTS[1:], *op.layouts):
        yield Point(dims, workload.dtype, layout, statics)
    if (made := _made(op, usual, workload)) is not None:
        others = dict(made.tensors)
        tensors = tuple(sorted((name, spec) for name, spec in workload.tensors if spec is not None and spec != others.get(name)))
        yield Point(dims, workload.dtype, statics=statics, tensors=tensors)


def _statics(op: Op, workload: Workload) -> tuple[tuple[str, Scalar], ...]:
    """Scalars and optional tensors that are not as in the usual call, by name."""
    defaults = {a.name: a.default for a in op.arguments}
    found = {name: value for name, value in workload.statics if value != defaults[name]}
    plain = Point(tuple(size for _, size in workload.dims), workload.dtype, statics=tuple(found.items()))
    usual = _made(op, plain, workload)
    for argument in op.arguments:
        if usual is not None and argument.type == "Tensor?" and workload.has(argument.name) != usual.has(argument.name):
            found[argument.name] = GIVEN if workload.has(argument.name) else ABSENT
    return tuple(sorted(found.items()))
