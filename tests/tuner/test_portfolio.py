"""Portfolio selection on tables of times: the property it is for, that fewer can't do, and what a table without a time means."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernelyard.tuner import portfolio as portfolios
from kernelyard.tuner.portfolio import Pair, Table, losses, portfolio, shortlist

A, B, C, D = (("toy.one", name) for name in "abcd")
TIMES = st.floats(min_value=1.0, max_value=2.0)
TABLES = st.dictionaries(st.text("uvwxyz", min_size=1), st.dictionaries(st.sampled_from([A, B, C, D]), TIMES, min_size=1), min_size=1)


def keeps(table: Table, few: tuple[Pair, ...], percent: float) -> bool:
    """Whether every workload has one of the pairs within the percentage of its best."""
    return all(any(losses(times).get(pair, 99) <= percent / 100 for pair in few) for times in table.values())


@given(TABLES, st.floats(min_value=0.1, max_value=60))
def test_every_workload_is_served_within_the_percentage_by_the_fastest_pair_it_has(table: Table, percent: float) -> None:
    chosen = portfolio(table, percent)
    assert set(chosen.serves) == set(table) and {pair for pair, _ in chosen.serves.values()} == set(chosen.pairs)
    for workload, (pair, loss) in chosen.serves.items():
        assert loss == losses(table[workload])[pair] <= percent / 100
        assert all(table[workload][pair] <= table[workload].get(other, 99) for other in chosen.pairs)


@given(TABLES, st.floats(min_value=0.1, max_value=60))
def test_no_smaller_set_of_pairs_would_do(table: Table, percent: float) -> None:
    chosen = portfolio(table, percent)
    smaller = [few for size in range(len(chosen.pairs)) for few in combinations([A, B, C, D], size)]
    assert chosen.exact and not any(keeps(table, few, percent) for few in smaller)


def test_a_pair_near_the_best_everywhere_is_taken_over_the_winners_of_each() -> None:
    table = {"small": {A: 1.0, B: 1.04, C: 2.0}, "large": {A: 2.0, B: 1.03, C: 1.0}}
    assert portfolio(table, 5).pairs == (B,)
    assert portfolio(table, 1).pairs == (A, C)


def test_of_as_few_pairs_those_that_lose_least_are_taken() -> None:
    assert portfolio({"small": {A: 1.0, B: 1.01}, "large": {A: 1.04, B: 1.0}}, 5).pairs == (B,)


def test_a_pair_counts_only_for_the_workloads_on_which_it_was_measured() -> None:
    assert set(portfolio({"small": {A: 1.0}, "large": {A: 1.5, B: 1.0}}, 5).pairs) == {A, B}


@settings(max_examples=30)
@given(TABLES, st.floats(min_value=0.1, max_value=60))
def test_where_all_sets_are_too_many_the_greedy_cover_keeps_the_percentage_too(table: Table, percent: float) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(portfolios, "MOST_COVERS", 0)
        chosen = portfolio(table, percent)
    assert not chosen.exact and keeps(table, chosen.pairs, percent)


def test_the_shortlist_has_the_winners_the_cover_by_trials_and_who_was_near_most_often() -> None:
    trials = {"small": {A: 1.0, B: 1.04, C: 1.5}, "large": {A: 2.0, B: 1.03, C: 1.0}, "never tried": {}}
    assert shortlist(trials, [D, D, C], 5) == (D, C, B, A)


def test_without_trials_the_winners_alone_are_measured() -> None:
    assert shortlist({"small": {}}, [A, B, A], 5) == (A, B)
