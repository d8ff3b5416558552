"""The model of indexing: laws of requests and sectors that hold for every block, and the cases that everyone computes by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from kernelyard.measure.indexing import LANES, Cost, Layout, Width, blocked, cost, lanes, requests, width

START = 1 << 20
sizes = st.sampled_from([1, 2, 4, 8])
powers = st.sampled_from([1, 2, 4, 8, 16, 32, 64, 128])
warps = st.sampled_from([1, 2, 4, 8])


def row(count: int, itemsize: int, stride: int = 1, start: int = START) -> NDArray[np.int64]:
    return start + itemsize * stride * np.arange(count, dtype=np.int64)


def spread(addresses: NDArray[np.int64], itemsize: int, mask: NDArray[np.bool_] | None = None, num_warps: int = 1) -> Cost:
    """The cost of a block in the layout that it would have by itself."""
    mask = np.ones(addresses.shape, np.bool_) if mask is None else mask
    allowed = width(addresses, mask, itemsize)
    layout = blocked(addresses.shape, allowed.aligned, allowed.order, num_warps)
    return cost(addresses, mask, itemsize, layout, layout.at_once(allowed))


# By hand ---------------------------------------------------------------------------------------------


def test_32_lanes_of_neighbouring_4_bytes_take_4_sectors() -> None:
    assert spread(row(32, 4), 4) == Cost(requests=1, sectors=4, ideal=4)


def test_16_bytes_a_lane_take_16_sectors() -> None:
    assert spread(row(128, 4), 4) == Cost(requests=1, sectors=16, ideal=16)
    assert spread(row(256, 2), 2) == Cost(requests=1, sectors=16, ideal=16)


@pytest.mark.parametrize(("stride", "sectors"), [(1, 4), (2, 8), (4, 16), (8, 32), (1000, 32)])
def test_a_stride_takes_as_many_sectors_as_it_spans_and_at_most_one_a_lane(stride: int, sectors: int) -> None:
    assert spread(row(32, 4, stride), 4) == Cost(1, sectors, 4)


def test_one_element_for_all_lanes_is_one_sector() -> None:
    assert spread(row(32, 4, 0), 4) == Cost(1, 1, 1)


def test_a_misaligned_row_takes_one_sector_more_and_narrow_accesses() -> None:
    assert spread(row(32, 4, start=START + 4), 4) == Cost(1, 5, 4)
    assert width(row(256, 2, start=START + 2), np.ones(256, np.bool_), 2) == Width((256,), 1, 1)


def test_an_element_across_two_sectors_counts_both() -> None:
    assert spread(row(1, 8, start=START + 28), 8) == Cost(1, 2, 1)


def test_a_warp_that_is_masked_off_makes_no_request() -> None:
    mask = np.arange(256) < 64
    assert spread(row(256, 4), 4, mask, num_warps=2) == Cost(1, 8, 8)


def test_a_mask_inside_a_lanes_elements_cuts_its_access_and_costs_sectors() -> None:
    mask = np.arange(1024) < 777
    allowed = width(row(1024, 4), mask, 4)
    assert (allowed.aligned, allowed.at_once) == (4, 1)
    layout = blocked((1024,), 4, (0,), 1)
    cut = cost(row(1024, 4), mask, 4, layout, allowed.at_once)
    assert cut.sectors > 3.5 * cut.ideal


@pytest.mark.parametrize(
    ("shape", "held", "order", "num_warps", "expected"),
    [
        ((1, 1024), 8, (1, 0), 4, Layout((1, 8), (1, 32), (1, 4), (1, 0))),
        ((16, 128), 4, (1, 0), 4, Layout((1, 4), (1, 32), (4, 1), (1, 0))),
        ((64, 64), 4, (1, 0), 4, Layout((1, 4), (2, 16), (4, 1), (1, 0))),
        ((64, 64), 4, (0, 1), 4, Layout((4, 1), (16, 2), (1, 4), (0, 1))),
        ((64,), 8, (0,), 4, Layout((1,), (32,), (4,), (0,))),
    ],
)
def test_layouts_are_those_of_tritons_builder(shape: tuple[int, ...], held: int, order: tuple[int, ...], num_warps: int, expected: Layout):
    assert blocked(shape, held, order, num_warps) == expected


def test_a_column_of_a_matrix_is_walked_along_its_contiguous_dimension() -> None:
    addresses = START + 4 * (np.arange(64)[:, None] + 64 * np.arange(64)[None, :])
    allowed = width(addresses, np.ones((64, 64), np.bool_), 4)
    assert allowed.order == (0, 1) and allowed.aligned == 4
    total = spread(addresses, 4, num_warps=4)
    assert total.sectors == total.ideal


def test_a_block_contiguous_nowhere_is_walked_along_its_last_dimension() -> None:
    addresses = START + 4 * (1000 * np.arange(4)[:, None] + 8 * np.arange(64)[None, :])
    assert width(addresses, np.ones((4, 64), np.bool_), 4) == Width((1, 1), 1, 1)
    assert Width((1, 1), 1, 1).order == (1, 0) and Width((2, 1), 1, 1).order == (0, 1)


def test_lanes_of_the_first_request_show_offsets_and_sectors() -> None:
    mask = np.arange(256) < 8
    shown = lanes(row(256, 2), mask, 2, blocked((256,), 8, (0,), 1), 8, START)
    assert shown[0].offsets == [0, 2, 4, 6, 8, 10, 12, 14] and shown[0].sectors == [0]
    assert shown[1].offsets == [] and len(shown) == LANES


# Laws ------------------------------------------------------------------------------------------------

shapes = st.lists(powers, min_size=1, max_size=3).filter(lambda s: math.prod(s) <= 4096).map(tuple)


@given(shapes, sizes, warps, st.data())
@settings(max_examples=60, deadline=None)
def test_every_element_is_asked_for_by_exactly_one_lane(shape: tuple[int, ...], held: int, num_warps: int, data: st.DataObject) -> None:
    order = tuple(data.draw(st.permutations(range(len(shape)))))
    layout = blocked(shape, held, order, num_warps)
    assert math.prod(layout.lanes) == LANES and math.prod(layout.warps) == num_warps
    table = requests(shape, layout, min(data.draw(sizes), math.prod(layout.held)))
    assert sorted(table[table >= 0].tolist()) == list(range(math.prod(shape)))
    assert (table >= 0).any(axis=(1, 2)).all()


@given(st.lists(st.integers(0, 4095), min_size=64, max_size=64), st.lists(st.booleans(), min_size=64, max_size=64), sizes, warps)
@settings(max_examples=60, deadline=None)
def test_sectors_lie_between_the_ideal_and_one_an_active_lane(places: list[int], on: list[bool], itemsize: int, num_warps: int) -> None:
    addresses, mask = START + itemsize * np.array(places, dtype=np.int64), np.array(on)
    total = spread(addresses, itemsize, mask, num_warps)
    assert total.ideal <= total.sectors <= mask.sum()
    assert total.requests <= total.ideal or not mask.any()
    assert total.sectors >= len(np.unique(addresses[mask] // 32))


@given(st.integers(0, 63).map(lambda k: 32 * k), sizes, warps, st.integers(5, 11).map(lambda e: 1 << e))
@settings(max_examples=60, deadline=None)
def test_an_aligned_row_takes_no_sector_twice(shift: int, itemsize: int, num_warps: int, count: int) -> None:
    total = spread(row(count, itemsize, start=START + shift), itemsize, num_warps=num_warps)
    assert total.sectors == total.ideal == -(-count * itemsize // 32)


@given(st.integers(0, 10**6), sizes, st.integers(0, 7), st.lists(st.booleans(), min_size=128, max_size=128))
@settings(max_examples=60, deadline=None)
def test_moving_a_block_by_whole_sectors_changes_nothing(moved: int, itemsize: int, start: int, on: list[bool]) -> None:
    mask, here = np.array(on), row(128, itemsize, start=START + start * itemsize)
    assert width(here, mask, itemsize) == width(here + 32 * moved, mask, itemsize)
    assert spread(here, itemsize, mask) == spread(here + 32 * moved, itemsize, mask)


@given(st.integers(0, 31), st.integers(1, 256), sizes)
@settings(max_examples=60, deadline=None)
def test_what_a_lane_moves_at_once_is_aligned_and_wholly_on_or_off(start: int, count: int, itemsize: int) -> None:
    addresses, mask = row(256, itemsize, start=START + start * itemsize), np.arange(256) < count
    allowed = width(addresses, mask, itemsize)
    assert allowed.at_once <= allowed.aligned and allowed.aligned * itemsize <= 16
    pieces = mask.reshape(-1, allowed.at_once)
    assert (pieces.all(axis=1) == pieces.any(axis=1)).all()
    assert not (addresses[:: allowed.at_once] % (allowed.at_once * itemsize)).any()
