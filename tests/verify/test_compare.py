"""Comparison finds every element outside the tolerance, and no other; words say where they lie and why."""

from __future__ import annotations

import math

import pytest
import torch

from kernelyard.contracts.rmsnorm import RMSNORM
from kernelyard.registry.op import Point
from kernelyard.registry.spec import Tolerance
from kernelyard.verify import compare, diagnosis

TOLERANCE = Tolerance(1e-3, 1e-6, "for the test")
NAN, INF = math.nan, math.inf


def wrong(got: list[float], want: list[float], dtype: torch.dtype = torch.float32, nonfinite: bool = True) -> list[bool]:
    mask = compare.wrong(torch.tensor(got, dtype=dtype), torch.tensor(want, dtype=torch.float64), TOLERANCE, nonfinite)
    return [False] * len(got) if mask is None else mask.tolist()


@pytest.mark.parametrize(
    ("got", "want", "bad"),
    [
        (1.0009, 1.0, False), (1.0011, 1.0, True), (9e-7, 0.0, False), (2e-6, 0.0, True), (-1.0, 1.0, True),
        (NAN, NAN, False), (NAN, 1.0, True), (1.0, NAN, True), (0.0, NAN, True), (INF, NAN, True),
        (INF, INF, False), (-INF, INF, True), (INF, 1.0, True), (1.0, INF, True), (3e38, INF, True),
    ],
)  # fmt: skip
def test_element_is_wrong_exactly_outside_the_tolerance(got: float, want: float, bad: bool) -> None:
    assert wrong([0.5, got], [0.5, want]) == [False, bad]


def test_value_beyond_the_dtype_may_be_infinite_and_only_there() -> None:
    assert wrong([INF, INF, -INF], [70000.0, 60000.0, 70000.0], torch.float16) == [False, True, True]


def test_without_nonfinite_the_places_of_nan_are_not_looked_at() -> None:
    assert wrong([0.0, 2.0], [NAN, 1.0], nonfinite=False) == [False, True]


def test_one_wrong_element_among_many_chunks_is_found() -> None:
    want = torch.ones(1000, 1000)
    got = want.clone()
    got[777, 3] = 2.0
    mask = compare.wrong(got, want, TOLERANCE)
    assert mask is not None and mask.nonzero().tolist() == [[777, 3]]


@pytest.mark.parametrize("shape", [(0,), (0, 5), (3, 0)])
def test_nothing_is_wrong_with_no_elements(shape: tuple[int, ...]) -> None:
    empty = torch.empty(shape)
    assert compare.wrong(empty, empty, TOLERANCE) is None
    assert compare.errors(empty, empty) == compare.Errors()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_errors_count_units_in_the_last_place_of_the_output(dtype: torch.dtype) -> None:
    want = torch.tensor([1.0, -3.0, 1000.0], dtype=torch.float64)
    got = want.to(dtype)
    got[2] += 512 * torch.finfo(dtype).eps * 3
    assert compare.errors(got, want).ulp == 3.0


def test_largest_errors_skip_what_is_not_finite() -> None:
    errors = compare.errors(torch.tensor([NAN, INF, 1.5, 2.0]), torch.tensor([NAN, INF, 1.0, 2.0], dtype=torch.float64))
    assert (errors.absolute, errors.relative) == (0.5, 0.5)


def mask(*places: tuple[int, int]) -> torch.Tensor:
    marked = torch.zeros(7, 129, dtype=torch.bool)
    for row, col in places:
        marked[row, col] = True
    return marked


@pytest.mark.parametrize(
    ("marked", "words"),
    [
        (mask((0, 128), (3, 128)), "; all of them in the last column (of 129)"),
        (mask((0, 127), (3, 128)), "; all of them in the last 2 columns (of 129)"),
        (mask((6, 0), (6, 64)), "; all of them in the last row (from 6 of 7)"),
        (mask((2, 0), (4, 64)), "; they lie in 2 of 7 rows"),
        (mask(*((row, 5) for row in range(7))), "; they lie in 1 of 129 columns"),
        (torch.ones(7, 129, dtype=torch.bool), ""),
        (torch.arange(9) >= 5, "; all of them from element 5 on (of 9)"),
    ],
)
def test_place_names_columns_rows_and_elements(marked: torch.Tensor, words: str) -> None:
    assert diagnosis.place(marked) == words


def test_sentence_has_the_first_element_both_values_and_what_was_allowed() -> None:
    want = torch.full((7, 129), 1.25, dtype=torch.float64)
    got = want.float()
    got[2, 128] = 1.5
    bad = compare.wrong(got, want, TOLERANCE)
    assert bad is not None
    assert diagnosis.sentence(bad, got, want, TOLERANCE) == (
        "1 of 903 elements differ: first at (row 2, col 128): got 1.5, want 1.25, allowed 0.0013; all of them in the last column (of 129)"
    )


def test_cause_is_silent_when_nothing_fits() -> None:
    inputs = RMSNORM.inputs(RMSNORM.workload(Point((7, 129), "float32")), GENERATOR)
    args = tuple(a.double() if isinstance(a, torch.Tensor) else a for a in inputs)
    want = RMSNORM.reference(*args)
    noise = torch.randn(want.shape, dtype=torch.float64, generator=GENERATOR)
    assert diagnosis.cause(RMSNORM, args, torch.ones_like(want, dtype=torch.bool), noise, want, 0) == ""


GENERATOR = torch.Generator().manual_seed(1)
