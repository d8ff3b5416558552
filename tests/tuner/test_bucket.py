"""A bucket from end to end on the toy's kernels, whose times differ by factors: pairs, rule, what is kept, and the held-out loss."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kernelyard.registry import registry, rules
from kernelyard.registry.dispatch import select
from kernelyard.registry.machine import identity
from kernelyard.registry.matrix import Matrix
from kernelyard.registry.op import Op, Point
from kernelyard.registry.spec import Workload
from kernelyard.store import choices as stored_choices
from kernelyard.store import rules as stored
from kernelyard.store.database import open_store
from kernelyard.tuner import bucket as buckets
from kernelyard.tuner.answers import Asked
from kernelyard.tuner.bucket import Bucket, is_worth
from kernelyard.tuner.held_out import held_out
from kernelyard.tuner.report import TuneReport
from kernelyard.tuner.session import Session, opened
from kernelyard.tuner.tune import tune

pytestmark = pytest.mark.timeout(300)  # the first test waits for all that the module measures
MATRIX = Matrix("mine", "sized", (Point((5_000,), "float32"), Point((20_000,), "float32"), Point((40_000,), "float32")))
FAST = {"work": 1}


def op() -> Op:
    return registry.current().op("sized")


def at(n: int) -> Workload:
    return op().workload(Point((n,), "float32"), "cpu")


def asking(**more: Any) -> Asked:
    limits = importlib.import_module("toy_plugin").QUICK
    fields = {"kernels": None, "trials": None, "force": False, "storage": None, "matrix": MATRIX, "command": "", "limits": limits}
    return Asked(op(), registry.current(), identity("cpu"), **{**fields, **more})


@pytest.fixture(scope="module")
def report(toy: Path) -> TuneReport:
    limits = importlib.import_module("toy_plugin").QUICK
    return tune(op(), [op().workload(point, "cpu") for point in MATRIX.points], "cpu", matrix=MATRIX, limits=limits)


@pytest.fixture(scope="module")
def told() -> list[str]:
    return []


@pytest.fixture(scope="module")
def session(report: TuneReport) -> Iterator[Session]:
    """One worker for the module: each takes seconds to import torch."""
    with opened(asking()) as session:
        yield session


@pytest.fixture(scope="module")
def made(session: Session, report: TuneReport, told: list[str]) -> Bucket:
    """A bucket of 100%: what is slower here is so by a factor of 40 and more."""
    return buckets.make(session, report, 100, told.append)


def test_one_pair_that_is_near_the_best_everywhere_is_the_portfolio(made: Bucket, told: list[str]) -> None:
    assert [(pair.kernel, dict(pair.config)) for pair in made.rule.pairs] == [("toy.tuned", FAST)]
    assert made.kept and made.evidence["exact"] and all(row["loss"] <= 1 for row in made.evidence["workloads"])
    assert told[0].startswith("[1/3] sized 5000 fp32:")


def test_every_measured_workload_stands_in_the_rule_with_its_loss(made: Bucket) -> None:
    assert [one.label for one in made.rule.measured] == ["5000 fp32", "20000 fp32", "40000 fp32"]
    assert all(0 <= one.loss <= 1 for one in made.rule.measured)


def test_each_workload_left_out_is_served_by_the_rule_of_the_others_and_beside_what_serves_untuned(made: Bucket) -> None:
    assert [row["workload"] for row in made.evidence["left_out"]] == ["5000 fp32", "20000 fp32", "40000 fp32"]
    assert all(row["config"] == FAST and row["loss"] < row["untuned_loss"] for row in made.evidence["left_out"])


def test_an_unseen_shape_is_served_by_the_stored_rule_and_says_so(made: Bucket) -> None:
    selection = select(op(), at(25_000))
    assert selection.config == FAST and selection.by_rule
    assert "rule of bucket 100% (matrix mine, run " in selection.reason and "nearest tuned workload 20000 fp32" in selection.reason
    assert select(op(), at(20_000)).reason.startswith("stored choice")


def test_the_times_it_was_made_of_are_stored(made: Bucket) -> None:
    with open_store() as store:
        rows = store.measurements(made.rule.run_id)
    assert {row["workload"] for row in rows if row["stage"] == "bucket"} == {"5000 fp32", "20000 fp32", "40000 fp32"}


def test_the_same_choices_are_answered_from_the_store_and_another_percentage_is_not(made: Bucket, report: TuneReport) -> None:
    found = buckets.from_store(asking(), report, 100)
    assert found is not None and found.rule == made.rule and found.from_cache
    assert buckets.from_store(asking(), report, 40) is None and buckets.from_store(asking(force=True), report, 100) is None


def test_a_held_out_shape_is_tuned_to_compare_and_leaves_no_choice(session: Session, made: Bucket) -> None:
    shown = held_out(session, made, [at(15_000), at(20_000), at(90_000)], lambda text: None)
    inside, outside = shown.evidence["held_out"]  # 20000 was tuned, and so shows nothing
    assert inside["by_rule"] and inside["served_by"] == {"kernel": "toy.tuned", "config": FAST}
    assert 0 <= inside["loss"] < inside["untuned_loss"]
    assert not outside["by_rule"] and "n is 90000, it was measured from 5000 to 40000" in outside["reason"]
    assert stored_choices.find("sized", at(15_000).key(), identity("cpu").key()) is None
    (entry,) = stored.listed("sized")
    assert entry.rule == made.rule and len(entry.evidence["held_out"]) == 2


def test_a_rule_is_worth_having_only_where_it_is_no_slower_than_what_serves_without() -> None:
    def left(loss: float, untuned_loss: float | None) -> dict[str, float | None]:
        return {"loss": loss, "untuned_loss": untuned_loss}

    assert is_worth([left(0.1, 0.2), left(0.0, 0.0)]) and is_worth([left(0.1, 0.1)])
    assert not is_worth([left(0.1, 0.0), left(0.05, 0.1)])
    assert is_worth([left(9.0, None)])


def test_a_rule_that_is_slower_than_what_serves_without_takes_its_place_away(
    session: Session, made: Bucket, report: TuneReport, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(buckets, "leave_each_out", lambda asked, rows, percent: [{"loss": 1.0, "untuned_loss": 0.0}])
    assert not buckets.make(session, report, 50, lambda text: None).kept
    assert stored.listed("sized") == [] and rules.find(at(25_000)) is None
    stored.save(made.rule, made.evidence)
