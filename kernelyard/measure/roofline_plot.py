"""The roofline of a device (Williams, Waterman, Patterson, CACM 2009) with kernels on it, in plain characters and as an SVG.

Both axes are logarithmic: floating-point operations for each byte moved, and TFLOP/s. The slope is the copy's bandwidth, the
flat roofs are the matrix rates, by dtype; where they meet is the ridge. Everything here is arithmetic on figures that
were measured elsewhere, and the same figures give the same text.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

MARKS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
COLUMNS, ROWS = 78, 22
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 760, 460, 64, 24, 28, 48
LINE = 15
"""Pixels of a line of the legend."""


@dataclass(frozen=True)
class Spot:
    """A kernel on a workload: operations a byte by the op's cost model, and the rate that its measured time gives."""

    label: str
    intensity: float
    tflops: float


@dataclass(frozen=True)
class Roofs:
    """The copy's bandwidth in GB/s, and matrix rates in TFLOP/s by dtype."""

    gbps: float
    tflops: Mapping[str, float]

    def ridge(self, dtype: str) -> float:
        """Operations a byte above which the dtype's matrix rate is the lower roof."""
        return self.tflops[dtype] * 1e3 / self.gbps

    def at(self, intensity: float) -> float:
        """TFLOP/s of the slope there."""
        return self.gbps * intensity / 1e3


@dataclass(frozen=True)
class Frame:
    """Decades that the axes span, as powers of ten."""

    x0: int
    x1: int
    y0: int
    y1: int

    def place(self, intensity: float, tflops: float) -> tuple[float, float]:
        """Shares of the width from the left and of the height from below; outside of 0 to 1 is outside of the frame."""
        return (math.log10(intensity) - self.x0) / (self.x1 - self.x0), (math.log10(tflops) - self.y0) / (self.y1 - self.y0)


def frame(roofs: Roofs, spots: Sequence[Spot]) -> Frame:
    """Whole decades around every ridge and spot, with some slope and some roof in sight."""
    ridges = [roofs.ridge(dtype) for dtype in roofs.tflops]
    xs = [*ridges, *(spot.intensity for spot in spots)] or [1.0]
    x0, x1 = math.floor(math.log10(min(xs) / 2)), math.ceil(math.log10(max(xs) * 4))
    ys = [*roofs.tflops.values(), *(spot.tflops for spot in spots), roofs.at(min(xs))]
    return Frame(x0, x1, math.floor(math.log10(min(ys) / 1.5)), math.ceil(math.log10(max(ys) * 1.5)))


def marked(spots: Sequence[Spot]) -> list[tuple[str, Spot]]:
    """Each spot with its mark, from the highest rate down; beyond 62 they share '*'."""
    ordered = sorted(spots, key=lambda spot: (-spot.tflops, spot.label))
    return [(MARKS[i] if i < len(MARKS) else "*", spot) for i, spot in enumerate(ordered)]


def characters(roofs: Roofs, spots: Sequence[Spot]) -> str:
    """The roofline for a terminal: '/' the copy, '-' matrix rates, '+' ridges, letters the kernels; '#' where several meet."""
    area = frame(roofs, spots)
    grid = [[" "] * COLUMNS for _ in range(ROWS)]
    for column in range(COLUMNS):
        intensity = 10 ** (area.x0 + (area.x1 - area.x0) * column / (COLUMNS - 1))
        _put(grid, area, intensity, roofs.at(intensity), "/", below=max(roofs.tflops.values(), default=math.inf))
        for dtype, rate in roofs.tflops.items():
            if intensity >= roofs.ridge(dtype):
                _put(grid, area, intensity, rate, "-")
    for dtype, rate in roofs.tflops.items():
        _put(grid, area, roofs.ridge(dtype), rate, "+")
        _write(grid, area, rate, f" {dtype} ")
    for mark, spot in marked(spots):
        _put(grid, area, spot.intensity, spot.tflops, mark)
    lines = [f"{_tick(area, row)} |{''.join(cells).rstrip()}" for row, cells in enumerate(grid)]
    return "\n".join(["TFLOP/s", *lines, *_axis(area)])


def _put(grid: list[list[str]], area: Frame, intensity: float, tflops: float, mark: str, below: float = math.inf) -> None:
    x, y = area.place(intensity, tflops)
    if not (0 <= x <= 1 and 0 <= y <= 1 and tflops <= below):
        return
    cells, column = grid[ROWS - 1 - round(y * (ROWS - 1))], round(x * (COLUMNS - 1))
    taken = cells[column] in MARKS or cells[column] == "#"
    cells[column] = "#" if taken and mark not in "/-+" else mark


def _write(grid: list[list[str]], area: Frame, tflops: float, text: str) -> None:
    """On a roof, at its right end, or left of what another roof of the same row has there."""
    cells, end = grid[ROWS - 1 - round(area.place(1.0, tflops)[1] * (ROWS - 1))], COLUMNS
    while end > len(text) and any(cell not in " /-+" for cell in cells[end - len(text) : end]):
        end -= 1
    cells[end - len(text) : end] = list(text)


def _tick(area: Frame, row: int) -> str:
    """The decade of a row, where one lies on it."""
    rows = {ROWS - 1 - round((power - area.y0) / (area.y1 - area.y0) * (ROWS - 1)): power for power in range(area.y0, area.y1 + 1)}
    return f"{_decade(rows[row]):>8}" if row in rows else " " * 8


def _axis(area: Frame) -> list[str]:
    rule, labels = ["-"] * COLUMNS, [" "] * (COLUMNS + 8)
    for power in range(area.x0, area.x1 + 1):
        column, text = round((power - area.x0) / (area.x1 - area.x0) * (COLUMNS - 1)), _decade(power)
        rule[column] = "+"
        labels[column : column + len(text)] = list(text)
    return [" " * 9 + "+" + "".join(rule), " " * 10 + "".join(labels).rstrip(), " " * 10 + "floating-point operations for each byte moved"]


def _decade(power: int) -> str:
    return f"{10.0**power:g}" if -4 <= power <= 5 else f"1e{power}"


def svg(title: str, roofs: Roofs, spots: Sequence[Spot]) -> str:
    """The roofline as a small SVG of its own: axes, roofs, ridges, each kernel as a labelled point, a legend below."""
    area, legend = frame(roofs, spots), marked(spots)
    height = HEIGHT + LINE * len(legend) + (LINE if legend else 0)
    body = [*_decades(area), *_roofs(area, roofs)]
    for i, (mark, spot) in enumerate(legend):
        x, y = _pixel(area, spot.intensity, spot.tflops)
        body.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="#b5361c"><title>{escape(_words(spot))}</title></circle>')
        body.append(_text(x + (7 if i % 2 == 0 else -7), y + 4, mark, "start" if i % 2 == 0 else "end"))
        body.append(_text(LEFT, HEIGHT + LINE * (i + 1), f"{mark}  {_words(spot)}"))
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="11" role="img">'
    start = [f"<title>{escape(title)}</title>", f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>', _text(LEFT, 16, title)]
    return "\n".join([head, *start, *body, "</svg>"]) + "\n"


def _words(spot: Spot) -> str:
    return f"{spot.label}: {spot.tflops:.3g} TFLOP/s at {spot.intensity:.3g} operations a byte"


def _pixel(area: Frame, intensity: float, tflops: float) -> tuple[float, float]:
    x, y = area.place(intensity, tflops)
    return LEFT + x * (WIDTH - LEFT - RIGHT), HEIGHT - BOTTOM - y * (HEIGHT - TOP - BOTTOM)


def _decades(area: Frame) -> list[str]:
    parts = []
    for power in range(area.x0, area.x1 + 1):
        x, _ = _pixel(area, 10.0**power, 10.0**area.y0)
        parts += [_line(x, TOP, x, HEIGHT - BOTTOM, "#ddd"), _text(x, HEIGHT - BOTTOM + 15, _decade(power), "middle")]
    for power in range(area.y0, area.y1 + 1):
        _, y = _pixel(area, 10.0**area.x0, 10.0**power)
        parts += [_line(LEFT, y, WIDTH - RIGHT, y, "#ddd"), _text(LEFT - 6, y + 4, _decade(power), "end")]
    below = _text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - BOTTOM + 32, "floating-point operations for each byte moved", "middle")
    return [*parts, below, _text(6, TOP - 8, "TFLOP/s")]


def _roofs(area: Frame, roofs: Roofs) -> list[str]:
    """The slope up to the highest ridge, cut at the frame's lower edge, and a roof from each ridge to the right."""
    top = max((roofs.ridge(dtype) for dtype in roofs.tflops), default=10.0**area.x1)
    low = max(10.0**area.x0, 10.0**area.y0 * 1e3 / roofs.gbps)
    (x0, y0), (x1, y1) = _pixel(area, low, roofs.at(low)), _pixel(area, top, roofs.at(top))
    parts = [_line(x0, y0, x1, y1, "#1f5c99", 2), _text(x0 + 10, y0 - 14, f"copy {roofs.gbps:.0f} GB/s")]
    last = math.inf
    for dtype, rate in sorted(roofs.tflops.items(), key=lambda item: (-item[1], item[0])):
        ridge = roofs.ridge(dtype)
        (x, y), (end, _) = _pixel(area, ridge, rate), _pixel(area, 10.0**area.x1, rate)
        parts += [_line(x, y, end, y, "#1f5c99", 2), f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="#1f5c99"/>']
        at = y - 5 if last == math.inf else max(y - 5, last + 12)  # roofs of like height: one label under the other
        parts.append(_text(end, at, f"{dtype} {rate:.3g} TFLOP/s, ridge at {ridge:.3g}", "end"))
        last = at
    return parts


def _line(x0: float, y0: float, x1: float, y1: float, colour: str, width: float = 1) -> str:
    return f'<line x1="{x0:.1f}" y1="{y0:.1f}" x2="{x1:.1f}" y2="{y1:.1f}" stroke="{colour}" stroke-width="{width}"/>'


def _text(x: float, y: float, text: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
