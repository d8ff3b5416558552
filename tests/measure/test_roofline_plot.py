"""The drawn roofline: everything measured is inside the frame, roofs and ridges where the figures put them, the same text each time."""

from __future__ import annotations

import math
import xml.etree.ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelyard.measure.roofline_plot import COLUMNS, HEIGHT, ROWS, WIDTH, Roofs, Spot, characters, frame, marked, svg

ROOFS = Roofs(1000.0, {"float32": 10.0, "bfloat16": 100.0})
SPOTS = [Spot("add 1024 a.b", 0.1, 0.05), Spot("mm <512> c.d", 50.0, 9.0)]
RATES = st.floats(1e-4, 1e4)


def grid(text: str) -> list[str]:
    """The cells of the drawing, without its ticks."""
    return [line[10:].ljust(COLUMNS) for line in text.splitlines()[1 : ROWS + 1]]


def test_a_ridge_is_where_the_slope_reaches_the_roof() -> None:
    assert ROOFS.ridge("float32") == 10.0 and ROOFS.at(ROOFS.ridge("bfloat16")) == 100.0


@given(st.floats(0.1, 1e5), RATES, st.lists(st.tuples(RATES, RATES), max_size=5))
def test_every_ridge_and_every_spot_is_inside_the_frame(gbps: float, rate: float, spots: list[tuple[float, float]]) -> None:
    roofs, found = Roofs(gbps, {"float32": rate}), [Spot("x", *spot) for spot in spots]
    area = frame(roofs, found)
    for x, y in [(roofs.ridge("float32"), rate), *spots]:
        across, up = area.place(x, y)
        assert 0 <= across <= 1 and 0 <= up <= 1


def test_the_highest_rate_is_a() -> None:
    assert [(mark, spot.label) for mark, spot in marked(SPOTS)] == [("A", "mm <512> c.d"), ("B", "add 1024 a.b")]


def test_marks_stand_where_their_figures_are() -> None:
    lines, area = grid(characters(ROOFS, SPOTS)), frame(ROOFS, SPOTS)
    for mark, spot in marked(SPOTS):
        across, up = area.place(spot.intensity, spot.tflops)
        assert lines[ROWS - 1 - round(up * (ROWS - 1))][round(across * (COLUMNS - 1))] == mark


def test_the_slope_rises_one_decade_a_decade_and_stops_at_the_highest_roof() -> None:
    lines = grid(characters(ROOFS, []))
    slope = [(line.index("/"), row) for row, line in enumerate(lines) if "/" in line]
    assert [column for column, _ in slope] == sorted((column for column, _ in slope), reverse=True)
    roof = next(row for row, line in enumerate(lines) if "bfloat16" in line)
    assert min(row for _, row in slope) >= roof and any("float32" in line and "bfloat16" not in line for line in lines[roof + 1 :])


def test_roofs_of_one_row_are_both_named() -> None:
    text = characters(Roofs(1000.0, {"bfloat16": 100.0, "float16": 100.0}), [])
    assert "bfloat16" in text and " float16" in text


def test_two_kernels_in_one_place_are_a_hash() -> None:
    assert "#" in characters(ROOFS, [Spot("one", 1.0, 0.5), Spot("two", 1.0, 0.5)])


def test_the_drawing_is_plain_characters_of_a_terminals_width() -> None:
    text = characters(ROOFS, SPOTS)
    assert text.isascii() and max(map(len, text.splitlines())) <= 100


def test_a_device_without_matrix_rates_is_a_slope() -> None:
    assert "/" in characters(Roofs(10.0, {}), [Spot("one", 0.25, 0.001)]) and "copy 10 GB/s" in svg("t", Roofs(10.0, {}), [])


def test_the_picture_is_well_formed_the_same_each_time_and_names_everything() -> None:
    text = svg("a <device>", ROOFS, SPOTS)
    assert text == svg("a <device>", ROOFS, list(reversed(SPOTS)))
    root = ET.fromstring(text)
    words = " ".join(element.text or "" for element in root.iter() if element.text)
    assert "a <device>" in words and "copy 1000 GB/s" in words and "bfloat16 100 TFLOP/s, ridge at 100" in words
    assert "mm <512> c.d: 9 TFLOP/s at 50 operations a byte" in words and "floating-point operations" in words


@pytest.mark.parametrize("spots", [[], SPOTS, [Spot(str(i), 1.0, 0.01 * (i + 1)) for i in range(70)]])
def test_everything_is_drawn_inside_the_picture(spots: list[Spot]) -> None:
    root = ET.fromstring(svg("t", ROOFS, spots))
    height = float(root.attrib["viewBox"].split()[3])
    assert height >= HEIGHT + 15 * len(spots)
    for element in root.iter():
        for name, most in (("x1", WIDTH), ("x2", WIDTH), ("cx", WIDTH), ("y1", HEIGHT), ("y2", HEIGHT), ("cy", HEIGHT)):
            assert 0 <= float(element.attrib.get(name, 0)) <= most and math.isfinite(float(element.attrib.get(name, 0)))
