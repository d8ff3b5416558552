"""Where to try a kernel to see its support from both sides: points just inside and just outside of what it declares, axis by axis.

Each point outside breaks the rule of its own axis alone. Nothing is built or run here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from kernelyard.errors import InvalidInput
from kernelyard.registry.kernel import Kernel
from kernelyard.registry.op import Op, Point
from kernelyard.registry.spec import Answer, DeclarationError, Workload
from kernelyard.verify import edges
from kernelyard.verify.check import fits

MOST_ELEMENTS = 1 << 22
"""Of a point that is tried: a few tens of milliseconds for a right kernel, seconds through an interpreter."""
INSIDE = (0, 1, 2, 3, 31, 33, 128, 1000, 1025, 4097)
"""Sizes that are tried wherever a kernel declares them, beside its own bounds: powers of two and their neighbours."""
LAYOUTS = ("contiguous", "offset", "row_strided", "transposed", "broadcast")
MOST_REFUSED = 4
"""Points that a predicate refuses and that are tried all the same."""
QUICK = ("random", "last")


@dataclass(frozen=True)
class Probe:
    """A point to try; `value` is where it lies on its axis, in words."""

    value: str
    point: Point


@dataclass(frozen=True)
class Axis:
    """One rule of a kernel's support. `each`: its values stand alone, as dtypes do; else it is a range of sizes, or a predicate.

    `edges` are the kinds of values to try. `beyond` says why nothing outside could be tried, where something is.
    """

    name: str
    declared: str
    inside: tuple[Probe, ...]
    outside: tuple[Probe, ...]
    each: bool = False
    edges: tuple[str, ...] = QUICK
    beyond: str = ""


def axes(op: Op, kernel: Kernel, device: str, base: Point) -> list[Axis]:
    """Every axis of the kernel's support, through the point `base`."""
    sizes = [_sizes(op, kernel, device, base, i) for i in range(len(op.dims))]
    return [*sizes, _dtypes(op, kernel, device, base), _layouts(op, kernel, device, base), *_predicates(op, kernel, device)]


def base_point(op: Op, kernel: Kernel, device: str) -> Point | None:
    """The smallest point that the kernel declares with 3 of everything and 64 elements, so that each axis has room to move."""
    plain = (p for p in op.matrix("correctness", device).points if p.layout == "contiguous" and not p.statics and 0 not in p.dims)
    matrix = [p for p in plain if _accepts(op, kernel, p, device)]
    roomy = [p for p in matrix if min(p.dims) >= 3 and math.prod(p.dims) >= 64]
    return min(roomy or matrix, key=lambda p: math.prod(p.dims), default=None)


def _accepts(op: Op, kernel: Kernel, point: Point, device: str, **relaxed: object) -> bool:
    """Whether the declared support, with some of its fields replaced, has the point."""
    other = replace(kernel, support=replace(kernel.support, **relaxed))  # type: ignore[arg-type]
    try:
        return bool(fits(other, op.workload(point, device)))
    except (DeclarationError, InvalidInput):  # a layout of two dimensions for an op of one, sizes that contradict
        return False


# Sizes ----------------------------------------------------------------------------------------------


def _sizes(op: Op, kernel: Kernel, device: str, base: Point, i: int) -> Axis:
    name, support = op.dims[i], kernel.support
    least, most = support.least.get(name, 0), support.most.get(name)
    usual = {point.dims[i] for point in op.matrix("correctness", device).points}
    top = {most - 1, most} if most is not None else {max(usual)}
    inside = {size for size in (*INSIDE, least, least + 1, *top) if least <= size <= (max(usual) if most is None else most)}
    outside = {least - 1, least // 2, 0} if least > 0 else set()
    if most is not None:
        outside |= {most + 1, most + 2, 2 * most, 2 * most + 1}

    def probes(sizes: Iterable[int], **relaxed: object) -> tuple[Probe, ...]:
        made = (Probe(str(size), sized(base, i, size)) for size in sorted(sizes) if size >= 0)
        return tuple(p for p in made if _small(p.point) and _accepts(op, kernel, p.point, device, **relaxed))

    without = {"most": _less(support.most, name), "least": _less(support.least, name)}
    beyond = "" if most is None or _small(sized(base, i, most + 1)) else f"{name} of {most + 1} is too large to try"
    declared = f"{least}..{most}" if most is not None else f"{least} or more" if least else "any"
    return Axis(name, declared, probes(inside), probes(outside - inside, **without), beyond=beyond)


def sized(base: Point, i: int, size: int) -> Point:
    """The base with one size changed; the others become small where the point would be large."""
    dims = list(base.dims)
    dims[i] = size
    if not _small(Point(tuple(dims), base.dtype)):
        dims = [size if j == i else min(n, 2) for j, n in enumerate(dims)]
    return replace(base, dims=tuple(dims))


def _small(point: Point) -> bool:
    return math.prod(point.dims) <= MOST_ELEMENTS


def _less(bounds: Mapping[str, int], name: str) -> dict[str, int]:
    return {key: value for key, value in bounds.items() if key != name}


# Values that stand alone ----------------------------------------------------------------------------


def _dtypes(op: Op, kernel: Kernel, device: str, base: Point) -> Axis:
    probes = [Probe(dtype, replace(base, dtype=dtype)) for dtype in op.dtypes]
    return _each(op, kernel, device, "dtype", probes, {"dtypes": op.dtypes}, ("random", *dict.fromkeys((*edges.ALWAYS, *op.edges))))


def _layouts(op: Op, kernel: Kernel, device: str, base: Point) -> Axis:
    probes = [Probe(layout, replace(base, layout=layout)) for layout in dict.fromkeys((*LAYOUTS, *op.layouts))]
    return _each(op, kernel, device, "layout", probes, {"unit_last_stride": False, "contiguous": False, "aligned": False}, QUICK)


def _each(
    op: Op, kernel: Kernel, device: str, name: str, probes: list[Probe], relaxed: dict[str, object], kinds: tuple[str, ...]
) -> Axis:
    inside = tuple(p for p in probes if _accepts(op, kernel, p.point, device))
    outside = tuple(p for p in probes if p not in inside and _accepts(op, kernel, p.point, device, **relaxed))
    return Axis(name, ", ".join(p.value for p in inside), inside, outside, each=True, edges=kinds)


def _predicates(op: Op, kernel: Kernel, device: str) -> Iterator[Axis]:
    """For each predicate, points of the matrices that it alone refuses."""
    every = {point for points in op.matrices.values() for point in points if _small(point) and 0 not in point.dims}
    ordered = sorted(every, key=lambda p: (math.prod(p.dims), p.dtype, p.layout, str(p.statics)))
    for predicate in kernel.support.predicates:
        others = tuple(other for other in kernel.support.predicates if other is not predicate)
        refused = [p for p in ordered if _accepts(op, kernel, p, device, predicates=others) and not predicate(op.workload(p, device))]
        chosen = refused[:: max(len(refused) // MOST_REFUSED, 1)][:MOST_REFUSED]
        name = getattr(predicate, "__name__", "predicate")
        beyond = "" if refused else "it refuses no point of the matrices that is small enough"
        reason = _reason(predicate, op.workload(chosen[0], device)) if chosen else name
        yield Axis(name, reason, (), tuple(Probe(_words(op, p), p) for p in chosen), beyond=beyond)


def _reason(predicate: Callable[[Workload], Answer], workload: Workload) -> str:
    return f"refuses: {predicate(workload).reason}"


def _words(op: Op, point: Point) -> str:
    return op.workload(point).label()

