"""The rule of a bucket, alone and in dispatch: whom it takes, for which shapes it speaks, and when it is passed over."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

import kernelyard
from kernelyard.registry import choices, registry, rules
from kernelyard.registry.dispatch import Selection, select
from kernelyard.registry.kernel import Kernel, Support
from kernelyard.registry.machine import identity
from kernelyard.registry.op import Point
from kernelyard.registry.registry import Registry
from kernelyard.registry.rule import Measured, Rule, form
from kernelyard.registry.space import ConfigSpace, Constraint, Parameter
from kernelyard.registry.spec import Choice, DeclarationError, Missed, Workload
from tests.registry.fakes import SCALE, make_choice, make_kernel

Install = Callable[..., Registry]
Use = Callable[..., Rule]
CPU = identity("cpu")
SPACE = ConfigSpace(
    (Parameter("value", (5, 6, 7), "numbers to tell apart"),),
    (Constraint(lambda config, workload: config["value"] != 5 or workload.dim("cols") % 2 == 0, "value 5 needs even columns"),),
)
TUNED = make_kernel("fake.tuned", "told_config", space=SPACE, priority=-1)
BEST, LAST = make_kernel("fake.best", 1, priority=2), make_kernel("fake.last", 3)


def asked(rows: int, cols: int, dtype: str = "float32", layout: str = "contiguous") -> Workload:
    return SCALE.workload(Point((rows, cols), dtype, layout))


SMALL, LARGE = asked(4, 64), asked(1024, 64)


def at(workload: Workload, pair: int, loss: float = 0.031) -> Measured:
    return Measured(form(workload), workload.dims, workload.label(), pair, loss)


def make_rule(*pairs: Choice, measured: tuple[Measured, ...] = (), **changes: Any) -> Rule:
    fields: dict[str, Any] = {"op": "scale", "device_key": CPU.key(), "mode": "device", "percent": 5.0}
    fields |= {"matrix_name": "performance/cpu", "matrix_hash": "h", "pairs": pairs, "run_id": "run1"}
    return Rule(**{**fields, "measured": measured or (at(SMALL, 0), at(LARGE, 1, 0.0)), **changes})


@pytest.fixture
def use(install: Install, monkeypatch: pytest.MonkeyPatch) -> Use:
    """`use(kernels..., value, value)`: these kernels, and a rule of TUNED with the first value near SMALL, the second near LARGE."""

    def put(*kernels: Kernel, values: tuple[int, int] = (5, 6), **changes: Any) -> Rule:
        table = install(TUNED, *kernels, LAST)
        pairs = [make_choice(TUNED, SMALL, CPU, config={"value": value}) for value in values]
        rule = make_rule(*(replace(pair, **changes) for pair in pairs))
        rules.connect(lambda op, device_key, mode: rule if (op, device_key, mode) == (rule.op, rule.device_key, rule.mode) else None)
        registry.reset(table)
        return rule

    return put


def chosen(workload: Workload) -> Selection:
    return select(registry.current().op("scale"), workload)


def told(selection: Selection) -> list[tuple[str, str]]:
    return [(one.kernel, one.reason) for one in selection.rejected]


def test_an_unseen_shape_is_served_by_the_nearest_measured_workload_s_pair_and_says_so(use: Use) -> None:
    use(BEST)
    near_small, near_large = chosen(asked(9, 64)), chosen(asked(200, 64))
    assert (near_small.kernel.name, near_small.config) == ("fake.tuned", {"value": 5}) and near_large.config == {"value": 6}
    assert near_small.reason == (
        "chosen by the rule of bucket 5% (matrix performance/cpu, run run1): nearest tuned workload 4x64 fp32, 1.0 doublings away, "
        "within 3.1% of the best there"
    )
    assert near_small.by_rule and near_small.missed is None


def test_a_call_is_served_by_the_rule(use: Use) -> None:
    use(BEST)
    assert float(kernelyard.ops.scale(torch.ones(9, 64))[0, 0]) == 5
    assert float(kernelyard.ops.scale(torch.ones(500, 64))[0, 0]) == 6


def test_the_tuned_choice_of_the_very_workload_goes_before_a_rule_that_would_be_slower_there(use: Use) -> None:
    use(BEST)
    here = asked(9, 64)
    choices.connect(lambda op, key, device, mode: make_choice(BEST, here, CPU) if key == here.key() else None)
    assert chosen(here).kernel.name == "fake.best" and not chosen(here).by_rule
    assert chosen(asked(10, 64)).by_rule


def test_a_pin_goes_before_the_rule(use: Use) -> None:
    use(BEST)
    with kernelyard.use(scale="fake.best"):
        assert chosen(asked(9, 64)).reason == "pinned by the caller"


def test_a_config_whose_constraints_fail_is_passed_over_for_the_next_of_the_rule(use: Use) -> None:
    rule = use(BEST)
    wide = replace(rule, measured=(at(asked(4, 2), 0), at(asked(1024, 99), 1)))
    rules.connect(lambda op, device_key, mode: wide)
    selection = chosen(asked(4, 3))
    assert selection.config == {"value": 6} and "another pair" in selection.reason
    assert told(selection) == [("fake.tuned", "rule of bucket 5%, value 5 needs even columns")]


def test_where_no_pair_of_the_rule_can_run_the_ordinary_selection_serves(use: Use) -> None:
    rule = use(BEST, values=(5, 5))
    rules.connect(lambda op, device_key, mode: replace(rule, measured=(at(asked(4, 2), 0), at(asked(1024, 99), 1))))
    selection = chosen(asked(4, 3))
    assert selection.kernel.name == "fake.best" and not selection.by_rule
    assert told(selection) == 2 * [("fake.tuned", "rule of bucket 5%, value 5 needs even columns")]


def test_a_kernel_that_does_not_support_the_workload_is_never_taken(install: Install) -> None:
    narrow = replace(TUNED, support=Support(("cpu",), ("float32",), most={"rows": 100}))
    pair = make_choice(narrow, SMALL, CPU, config={"value": 6})
    table = install(narrow, BEST, LAST)
    rules.connect(lambda op, device_key, mode: make_rule(pair, measured=(at(SMALL, 0), at(LARGE, 0))))
    registry.reset(table)
    assert chosen(asked(99, 64)).kernel.name == "fake.tuned"
    assert chosen(asked(101, 64)).kernel.name == "fake.best"
    assert ("fake.tuned", "rule of bucket 5%, rows is 101, the most is 100") in told(chosen(asked(101, 64)))


def test_a_pair_that_does_not_build_is_passed_over(install: Install) -> None:
    broken = make_kernel("fake.tuned", "broken", space=SPACE, priority=-1)
    table = install(broken, BEST, LAST)
    pair = make_choice(broken, SMALL, CPU, config={"value": 6})
    rules.connect(lambda op, device_key, mode: make_rule(pair, measured=(at(SMALL, 0), at(LARGE, 0))))
    registry.reset(table)
    with pytest.warns(RuntimeWarning, match="does not build"):
        assert float(kernelyard.ops.scale(torch.ones(9, 64))[0, 0]) == 1
    assert chosen(asked(9, 64)).kernel.name == "fake.best"


@pytest.mark.parametrize(
    "workload, reason",
    [
        (asked(2000, 64), "rows is 2000, it was measured from 4 to 1024"),
        (asked(3, 64), "rows is 3, it was measured from 4 to 1024"),
        (asked(9, 65), "cols is 65, it was measured from 64 to 64"),
        (asked(9, 64, "float16"), "no workload of these dtypes, layouts and arguments was measured for it"),
        (asked(9, 64, layout="transposed"), "no workload of these dtypes, layouts and arguments was measured for it"),
        (asked(9, 64, layout="offset"), "no workload of these dtypes, layouts and arguments was measured for it"),
    ],
)
def test_outside_of_what_was_measured_the_rule_does_not_speak(use: Use, workload: Workload, reason: str) -> None:
    use(BEST)
    selection = chosen(workload)
    assert selection.kernel.name == "fake.best" and told(selection) == [("rule of bucket 5%", reason)]


@pytest.mark.parametrize(
    "part, what", [("contract_hash", "contract"), ("source_hash", "source"), ("space_hash", "config space"), ("versions", "fake was")]
)
def test_a_rule_goes_stale_as_choices_do(use: Use, part: str, what: str) -> None:
    use(BEST, **{part: {"fake": "0"} if part == "versions" else "other"})
    selection = chosen(asked(9, 64))
    assert selection.kernel.name == "fake.best"
    ((name, reason),) = told(selection)
    assert name == "rule of bucket 5%" and reason.startswith("stale: ") and what in reason


def test_one_stale_pair_takes_the_whole_rule(use: Use) -> None:
    rule = use(BEST)
    half = replace(rule, pairs=(rule.pairs[0], replace(rule.pairs[1], source_hash="other")))
    rules.connect(lambda op, device_key, mode: half)
    assert chosen(asked(9, 64)).kernel.name == "fake.best"


def test_a_stale_choice_of_the_workload_is_still_a_miss_where_the_rule_serves(use: Use) -> None:
    use(BEST)
    here = asked(9, 64)
    choices.connect(lambda op, key, device, mode: make_choice(BEST, here, CPU, source_hash="other") if key == here.key() else None)
    assert chosen(here).by_rule and chosen(here).missed is Missed.STALE


def test_what_must_be_deterministic_is_served_by_the_rule_only_where_that_was_shown(use: Use, prove: Callable[..., None]) -> None:
    use(BEST)
    prove(LAST)
    with kernelyard.use(deterministic=True):
        assert chosen(asked(9, 64)).kernel.name == "fake.last"
    prove(LAST, TUNED)
    with kernelyard.use(deterministic=True):
        assert chosen(asked(9, 64)).by_rule


def test_a_rule_is_looked_up_once_for_a_signature_and_never_in_a_bound_call(use: Use) -> None:
    rule, looked = use(BEST), list[str]()

    def find(op: str, device_key: str, mode: str) -> Rule:
        looked.append(op)
        return rule

    rules.connect(find)
    for _ in range(5):
        kernelyard.ops.scale(torch.ones(9, 64))
    assert looked == ["scale"]


def test_two_layouts_are_two_forms_and_two_sizes_one() -> None:
    assert form(asked(4, 64)) == form(asked(9, 7))
    assert len({form(asked(4, 64, layout=layout)) for layout in ("contiguous", "row_strided", "transposed", "broadcast", "offset")}) == 5


def test_a_rule_that_names_a_pair_it_lacks_is_refused() -> None:
    with pytest.raises(DeclarationError, match=r"names pairs \[1\]"):
        make_rule(make_choice(TUNED, SMALL, CPU), measured=(at(SMALL, 1),))
