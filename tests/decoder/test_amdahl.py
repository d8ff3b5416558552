from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelyard.decoder import amdahl
from kernelyard.registry.spec import DeclarationError


@pytest.mark.parametrize(
    ("share", "speedup", "gain"), [(0.95, 20, 10.2564), (0.4, 10, 1.5625), (0.0, 7, 1.0), (1.0, 3, 3.0), (0.5, 0.5, 2 / 3)]
)
def test_the_gain_of_one_part(share: float, speedup: float, gain: float) -> None:
    assert amdahl.gain(share, speedup) == pytest.approx(gain, rel=1e-4)


def test_the_gain_of_several_parts_adds_their_shares() -> None:
    # Four parts of 11, 18, 23 and 48%, sped up 1, 5, 20 and 1.6 times.
    assert amdahl.gain_of_several([(0.11, 1), (0.18, 5), (0.23, 20), (0.48, 1.6)]) == pytest.approx(1 / 0.4575)


@given(st.floats(0, 0.999), st.floats(0.01, 1e6))
def test_no_speedup_gains_more_than_the_ceiling(share: float, speedup: float) -> None:
    assert amdahl.gain(share, speedup) <= amdahl.ceiling(share) * (1 + 1e-9)


@given(st.floats(0, 1))
def test_a_speedup_of_one_changes_nothing(share: float) -> None:
    assert amdahl.gain(share, 1.0) == pytest.approx(1.0)


def test_the_ceiling_of_the_whole_is_infinite() -> None:
    assert amdahl.ceiling(1.0) == math.inf


@pytest.mark.parametrize(("share", "speedup"), [(-0.1, 2), (1.1, 2), (0.5, 0), (0.5, -1), (0.5, math.nan), (0.5, math.inf), (math.nan, 2)])
def test_numbers_without_meaning_are_refused(share: float, speedup: float) -> None:
    with pytest.raises(DeclarationError):
        amdahl.gain(share, speedup)


def test_shares_that_exceed_the_whole_are_refused() -> None:
    with pytest.raises(DeclarationError, match="add up to 1 at most"):
        amdahl.gain_of_several([(0.6, 2), (0.6, 2)])


def test_shares_are_at_most_the_whole() -> None:
    assert amdahl.shares([2.0, 1.0], 8.0) == [0.25, 0.125]
    assert amdahl.shares([6.0, 3.0], 8.0) == pytest.approx([2 / 3, 1 / 3])


def test_a_whole_without_time_has_no_shares() -> None:
    with pytest.raises(DeclarationError, match="times must be positive"):
        amdahl.shares([1.0], 0.0)
