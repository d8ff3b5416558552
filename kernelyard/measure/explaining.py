"""One warp's request of a traced instruction, lane by lane, and what to think of it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kernelyard.measure.indexing import SECTOR_BYTES, Lane, Layout, Width, lanes
from kernelyard.registry.tracing import Access, Kind, Program


@dataclass(frozen=True, slots=True)
class Explained:
    """The first request of warp 0 in one execution of one instruction, lane by lane.

    A lane holds `held` elements, of which `aligned` could be moved at once if no mask cut them, and `at_once` are.
    """

    line: int
    kind: Kind
    tensor: str
    program: Program
    itemsize: int
    held: int
    aligned: int
    at_once: int
    lanes: tuple[Lane, ...]


@dataclass(frozen=True, slots=True)
class Question:
    """Which execution to explain: the first load where nothing is named, else the first at this line, of this program."""

    line: int | None = None
    program: Program | None = None

    def asks_for(self, access: Access) -> bool:
        """Whether this access is meant."""
        line = access.kind == "load" if self.line is None else access.line == self.line
        return line and (self.program is None or access.program == self.program)


def explain(access: Access, start: int, allowed: Width, layout: Layout) -> Explained:
    """The first request of warp 0; offsets count from `start`, the tensor's address."""
    at_once, held, size = layout.at_once(allowed), math.prod(layout.held), access.itemsize
    shown = lanes(access.addresses, access.mask, size, layout, at_once, start)
    return Explained(access.line, access.kind, access.tensor, access.program, size, held, allowed.aligned, at_once, shown)


def coalescing(one: Mapping[str, Any]) -> tuple[str, str]:
    """Two sentences on an explained request, as `asdict` gives it: what a lane does, what memory moves for all of them."""
    size, shown = one["itemsize"], [lane for lane in one["lanes"] if lane["offsets"]]
    if not shown:
        return "The mask turns all 32 lanes off.", "No request is made."
    first = f"A lane moves {one['at_once']} element{'s' * (one['at_once'] > 1)} of {size} bytes at once: {_limit(one)}."
    touched = len({sector for lane in shown for sector in lane["sectors"]})
    useful = len({offset for lane in shown for offset in lane["offsets"]}) * size
    least, moved = -(-useful // SECTOR_BYTES), touched * SECTOR_BYTES
    if touched == least:
        return first, f"The {len(shown)} active lanes need {useful} bytes and touch {touched} sectors of 32, as few as can be: coalesced."
    lost = f"{100 * (1 - useful / moved):.0f}% of what moves is not asked for by this request"
    return first, f"The {len(shown)} active lanes need {useful} bytes, {least} sectors at best, and touch {touched}: {lost}."


def _limit(one: Mapping[str, Any]) -> str:
    """Why a lane moves no more at once."""
    if one["at_once"] < min(one["aligned"], one["held"]):
        return f"the mask changes within the {one['aligned']} that its addresses allow"
    if one["aligned"] < one["held"]:
        return f"its addresses allow no more, though it holds {one['held']} neighbours, as a wider access of the same block does"
    if one["held"] < one["aligned"]:
        return "the block has no more for each thread"
    return "as much as its addresses allow"
