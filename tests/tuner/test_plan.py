"""What is tried on a workload: kernels that can run, the default first, near shapes' winners, and reasons for the rest."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernelyard.errors import Unsupported, UsageError
from kernelyard.registry import registry
from kernelyard.registry.op import Point
from kernelyard.registry.spec import Choice, TensorSpec, Workload
from kernelyard.store.records import Entry
from kernelyard.tuner.plan import KernelPlan, Plan, near_configs, plan, tunable


def planned(op: str, trials: int | None = None, names: list[str] | None = None, dtype: str = "float32") -> Plan:
    contract = registry.current().op(op)
    return plan(registry.current(), contract, contract.workload(Point((20_000,), dtype)), trials, names)


def only(one: Plan) -> KernelPlan:
    (search,) = one.searches
    return search


def test_a_small_space_is_searched_whole_the_default_first_then_the_hints(toy: Path) -> None:
    search = only(planned("many"))
    assert search.first == ({"work": 3}, {"work": 5}) and len(search.whole or ()) == search.budget == 6


def test_a_budget_below_the_space_leaves_it_to_tpe(toy: Path) -> None:
    search = only(planned("many", trials=4))
    assert search.whole is None and search.budget == 4


def test_the_reference_is_not_searched(toy: Path) -> None:
    assert [kernel.name for kernel in planned("many").references] == ["toy.eager"]


def test_an_op_of_references_alone_is_not_tunable_and_a_plugins_op_is(toy: Path) -> None:
    everything = registry.current()
    assert tunable(everything, everything.op("many"), "cpu") and not tunable(everything, everything.op("plain"), "cpu")
    assert not tunable(everything, everything.op("many"), "cuda")


def test_configs_that_constraints_forbid_are_counted(toy: Path) -> None:
    searches = {search.kernel.name: search for search in planned("twice").searches}
    assert searches["toy.tuned"].excluded == 6 and searches["toy.other"].budget == 1


def test_a_kernel_asked_for_by_name_that_can_not_take_part_is_refused_with_its_reason(toy: Path) -> None:
    contract = registry.current().op("many")
    workload = Workload("many", (("x", TensorSpec((8,), "float16")),), (), "cpu", (("n", 8),))
    assert "float16" in plan(registry.current(), contract, workload, None).skipped["toy.tuned"]
    with pytest.raises(Unsupported, match="float16"):
        plan(registry.current(), contract, workload, None, ["toy.tuned"])


def test_contradictory_constraints_are_refused_with_what_each_forbids_where_the_kernel_was_named(toy: Path) -> None:
    with pytest.raises(UsageError, match=r"'work must be below 3' forbids 4 of 6; 'work must be above 5' forbids 4 of 6") as caught:
        planned("empty", names=["toy.tuned"])
    assert caught.value.exit_code == 2


def test_a_kernel_with_an_empty_space_is_skipped_with_the_reason_where_it_was_not_named(toy: Path) -> None:
    everything = planned("empty")
    assert not everything.searches and "no config of its space" in everything.skipped["toy.tuned"]


def entry(size: int, work: int, kernel: str = "toy.tuned", dtype: str = "float32") -> Entry:
    choice = Choice("many", "key", "device", "device", kernel, {"work": work}, "", "", "", {})
    return Entry("many", "key", "device", "device", "", choice, "", {}, "", {"x": [size]}, dtype)


def test_winners_of_the_two_nearest_shapes_are_tried_early(toy: Path) -> None:
    kernel = registry.current().kernel("many", "toy.tuned")
    others = [entry(20_000, 13, kernel="toy.other"), entry(20_000, 13, dtype="float16")]
    stored = [entry(10**6, 1), entry(10_000, 2), entry(25_000, 8), *others]
    assert near_configs(kernel, planned("many").workload, stored) == [{"work": 8}, {"work": 2}]


def usual_plan(op: str, shape: tuple[int, ...]) -> Plan:
    contract = registry.current().op(op)
    return plan(registry.current(), contract, contract.workload(Point(shape, "float32")), None)


def test_what_breaks_the_contract_is_timed_beside_the_others_and_never_chosen() -> None:
    planned = usual_plan("softmax", (7, 64))
    assert "torch.plain" in planned.unchoosable and "torch.plain" in {kernel.name for kernel in planned.references}


def test_what_breaks_the_contract_and_can_not_run_here_is_skipped_with_the_reason() -> None:
    planned = usual_plan("rmsnorm_backward", (7, 64))
    assert "torch.plain" not in planned.unchoosable and "not on cpu" in planned.skipped["torch.plain"]
