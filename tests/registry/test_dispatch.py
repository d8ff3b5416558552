"""Selection: the order, a reason for every kernel passed over, stale choices, and builds that fail."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import kernelyard
from kernelyard.errors import BuildFailed, Unsupported
from kernelyard.registry import registry
from kernelyard.registry.dispatch import Selection, select
from kernelyard.registry.kernel import Kernel, Support
from kernelyard.registry.machine import identity
from kernelyard.registry.op import Point
from kernelyard.registry.registry import Registry
from kernelyard.registry.space import ConfigSpace, Constraint, Parameter
from kernelyard.registry.spec import Choice, Workload
from tests.registry import fakes
from tests.registry.fakes import SCALE, make_backend, make_choice, make_kernel, make_op, make_registry

Install = Callable[..., Registry]
Store = Callable[[Choice], None]
CPU = identity("cpu")
X = torch.ones(2, 4)
ASKED = SCALE.workload(Point((2, 4), "float32"))
WIDE = Support(("cpu",), ("float32",), least={"cols": 100})
SPACE = ConfigSpace((Parameter("value", (5, 6), "two numbers to tell apart"),))
BEST, NEXT, LAST = make_kernel("fake.best", 1, priority=2), make_kernel("fake.next", 2, priority=1), make_kernel("fake.last", 3)
TUNED = make_kernel("fake.tuned", "told_config", space=SPACE, priority=-1)


def chosen(workload: Workload = ASKED) -> Selection:
    return select(registry.current().op("scale"), workload)


def ran(x: torch.Tensor = X) -> float:
    """The number that the kernel which served filled in."""
    return float(kernelyard.ops.scale(x).flatten()[0])


def rejected(selection: Selection) -> dict[str, str]:
    return {one.kernel: one.reason for one in selection.rejected}


def test_the_highest_priority_serves_an_untuned_call(install: Install) -> None:
    install(NEXT, BEST, LAST)
    assert ran() == 1
    assert chosen().reason == "not tuned; highest priority (2) that can" and chosen().rejected == ()


def test_a_priority_for_a_range_of_workloads_holds_inside_it_alone(install: Install) -> None:
    narrow = Support(("cpu",), ("float32",), most={"cols": 4})
    install(NEXT, make_kernel("fake.narrow", 1, priority=0, priority_where=((WIDE, 7), (narrow, 5))), LAST)
    assert chosen().reason == "not tuned; highest priority (5) that can" and ran() == 1
    assert ran(torch.ones(2, 5)) == 2
    assert chosen(SCALE.workload(Point((2, 100), "float32"))).reason == "not tuned; highest priority (7) that can"


def test_a_negative_priority_for_a_range_leaves_its_workloads_to_others(install: Install) -> None:
    install(NEXT, make_kernel("fake.best", 1, priority=2, priority_where=((Support(("cpu",), ("float32",), most={"cols": 4}), -1),)), LAST)
    assert ran() == 2 and ran(torch.ones(2, 5)) == 1


def test_a_kernel_that_cannot_run_is_passed_over_with_its_reason(install: Install) -> None:
    install(make_kernel("fake.best", 1, priority=2, support=WIDE), NEXT, LAST)
    assert ran() == 2 and rejected(chosen()) == {"fake.best": "cols is 4, the least is 100"}
    told = "scale 2x4 fp32: fake.next, because: not tuned; highest priority (1) that can\n  not fake.best: cols is 4, the least is 100"
    assert str(chosen()) == told


def test_the_op_s_fallback_serves_last_whatever_its_priority(install: Install) -> None:
    install(make_kernel("fake.last", 3, priority=9), NEXT)
    assert ran() == 2
    install(make_kernel("fake.last", 3, priority=9), make_kernel("fake.next", 2, support=WIDE))
    assert ran() == 3 and chosen().reason == "the op's fallback: no other kernel can"


def test_a_kernel_s_fallbacks_come_before_lower_priorities(install: Install) -> None:
    best = make_kernel("fake.best", 1, priority=2, support=WIDE, fallbacks=("fake.spare", "fake.gone"))
    install(best, NEXT, LAST, make_kernel("fake.spare", 7 % 4, priority=-1))
    assert chosen().kernel.name == "fake.spare" and list(rejected(chosen())) == ["fake.best"]


def test_a_stored_choice_comes_before_priority_and_brings_its_config(install: Install, store: Store) -> None:
    install(BEST, TUNED, LAST)
    store(make_choice(TUNED, ASKED, CPU, config={"value": 6}))
    assert ran() == 6 and chosen().reason == "stored choice of run run1" and chosen().config == {"value": 6}
    assert ran(torch.ones(3, 4)) == 1, "a choice holds for its workload alone"


def test_a_pin_comes_before_a_stored_choice(install: Install, store: Store) -> None:
    install(BEST, NEXT, LAST)
    store(make_choice(NEXT, ASKED, CPU))
    with kernelyard.use(scale="fake.last"):
        assert ran() == 3 and chosen().reason == "pinned by the caller"
    assert ran() == 2


def test_a_pinned_kernel_takes_its_stored_config(install: Install, store: Store) -> None:
    install(BEST, TUNED)
    store(make_choice(TUNED, ASKED, CPU, config={"value": 6}))
    with kernelyard.use(scale="fake.tuned"):
        assert ran() == 6 and chosen().reason == "pinned by the caller, with its stored config"
        assert ran(torch.ones(3, 4)) == 5, "elsewhere its author's default"


def test_a_pinned_kernel_that_cannot_run_raises_with_the_reason(install: Install) -> None:
    install(make_kernel("fake.best", 1, support=WIDE), LAST)
    with (
        kernelyard.use(scale="fake.best"),
        pytest.raises(Unsupported, match=r"scale is pinned to fake.best, which can't run 2x4 fp32: cols"),
    ):
        ran()


def test_a_negative_priority_serves_only_when_pinned_or_chosen(install: Install, store: Store) -> None:
    install(make_kernel("fake.best", 1, priority=-1), LAST)
    assert ran() == 3 and rejected(chosen()) == {}
    with kernelyard.use(scale="fake.best"):
        assert ran() == 1
    store(make_choice(make_kernel("fake.best", 1, priority=-1), ASKED, CPU))
    assert ran() == 1


def test_where_nothing_can_run_every_reason_is_told(install: Install) -> None:
    install(make_kernel("fake.best", 1, support=WIDE), make_kernel("fake.next", 2, support=Support(("cpu",), ("float16",))))
    with pytest.raises(Unsupported, match=r"fake.best: cols is 4.*; fake.next: supports float16, not float32"):
        ran()
    install()
    with pytest.raises(Unsupported, match="it has no kernels"):
        ran()


@pytest.mark.parametrize(
    ("probe", "reason"),
    [
        ("absent", "no such compiler: install one"),
        ("failing", "its backend's probe failed: OSError: libfake.so is not here"),
        ("unwritten", "its backend's probe failed: AttributeError"),
        ("nonsense", "its backend's probe returned 'yes', not an Answer"),
    ],
)
def test_a_backend_that_is_not_here_is_a_reason(install: Install, probe: str, reason: str) -> None:
    install(make_kernel("other.best", 1), LAST, backends=(make_backend(), make_backend("other", probe)))
    assert ran() == 3 and reason in rejected(chosen())["other.best"]


def test_a_declaration_that_raises_is_a_reason_and_takes_no_other_kernel_down(install: Install) -> None:
    def predicate(workload: Workload) -> Any:
        return {}["limit"]

    install(make_kernel("fake.best", 1, priority=1, support=Support(("cpu",), ("float32",), predicates=(predicate,))), LAST)
    assert ran() == 3 and rejected(chosen()) == {"fake.best": "its declaration raised KeyError: 'limit'"}


@pytest.mark.parametrize("default", [None, lambda workload: {"value": 7}])
def test_a_kernel_without_an_allowed_config_is_passed_over(install: Install, default: Any) -> None:
    space = ConfigSpace(SPACE.parameters, (Constraint(lambda config, workload: False, "never"),), default)
    install(make_kernel("fake.best", "told_config", priority=1, space=space), LAST)
    assert ran() == 3 and "fake.best" in rejected(chosen())


# Stale choices ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"contract_hash": "old"}, "stale: the contract of the op has changed since it was tuned"),
        ({"source_hash": "old"}, "stale: the kernel's source has changed since it was tuned"),
        ({"space_hash": "old"}, "stale: the kernel's config space has changed since it was tuned"),
        ({"versions": {"fake": "0"}}, "stale: fake was 0, is 1"),
        ({"versions": {}}, "stale: fake was none, is 1"),
        ({"versions": {"fake": "1", "gone": "2"}}, "stale: gone was 2, is none"),
        ({"kernel": "fake.gone"}, "stale: kernel fake.gone is not installed any more"),
        ({"config": {"value": 7}}, "value=7 is not one of [5, 6]"),
        ({"config": {"value": 5.0}}, "value=5.0 is not one of [5, 6]"),
        ({"config": {"speed": 1}}, "config has ['speed'], the space has ['value']"),
    ],
)
def test_a_choice_that_no_longer_holds_is_a_miss_with_its_reason(
    install: Install, store: Store, changes: dict[str, Any], reason: str
) -> None:
    install(BEST, TUNED, LAST)
    store(make_choice(TUNED, ASKED, CPU, **changes))
    assert ran() == 1 and rejected(chosen()) == {changes.get("kernel", "fake.tuned"): f"stored choice, {reason}"}


def test_a_choice_whose_kernel_s_source_is_gone_is_a_miss(install: Install, store: Store) -> None:
    gone = make_kernel("fake.tuned", entry="no_such_module:one", priority=-1)
    install(BEST, gone, LAST)
    store(make_choice(make_kernel("fake.tuned", 1), ASKED, CPU))
    assert ran() == 1 and "can't be read now" in rejected(chosen())["fake.tuned"]


def test_a_choice_whose_kernel_cannot_run_here_any_more_is_a_miss(install: Install, store: Store) -> None:
    narrowed = make_kernel("fake.tuned", 1, priority=-1, support=WIDE)
    install(narrowed, LAST)
    store(make_choice(narrowed, ASKED, CPU))
    assert ran() == 3 and rejected(chosen()) == {"fake.tuned": "stored choice, cols is 4, the least is 100"}


# Builds -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("entry", "told"), [("broken", "the compiler said no"), ("raising", "KeyError: 'value'"), ("absent_entry", "AttributeError")]
)
def test_a_kernel_that_does_not_build_is_passed_over_with_one_warning(install: Install, entry: str, told: str) -> None:
    install(make_kernel("fake.best", entry, priority=1), LAST)
    with pytest.warns(RuntimeWarning, match=re.escape(told)) as caught:
        assert ran() == 3
    assert len(caught) == 1 and caught[0].filename == __file__, "the warning points at the call"
    assert told in rejected(chosen())["fake.best"], "explain knows it too"


def test_what_failed_to_build_is_not_built_again_for_the_workload(install: Install, prove: Callable[..., None]) -> None:
    install(best := make_kernel("fake.best", "broken", priority=1), LAST)
    prove(best, LAST)
    with pytest.warns(RuntimeWarning):
        ran()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert ran(torch.ones(1, 2, 4)) == 3, "another shape, the same workload"
        with kernelyard.use(deterministic=True):
            assert ran() == 3
    assert [name for name, _, _ in fakes.builds].count("fake.best") == 1


def test_a_pinned_kernel_that_does_not_build_raises(install: Install) -> None:
    install(make_kernel("fake.best", "broken"), LAST)
    with kernelyard.use(scale="fake.best"), pytest.raises(BuildFailed, match="the compiler said no error: expected"):
        ran()


def test_a_stored_choice_that_does_not_build_is_a_miss(install: Install, store: Store) -> None:
    broken = make_kernel("fake.tuned", "broken", priority=-1)
    install(broken, BEST, LAST)
    store(make_choice(broken, ASKED, CPU))
    with pytest.warns(RuntimeWarning, match="fake.tuned does not build"):
        assert ran() == 1
    assert rejected(chosen()) == {"fake.tuned": "stored choice, does not build: the compiler said no"}


# Choosing once ----------------------------------------------------------------------------------------


def test_a_signature_is_built_once(install: Install) -> None:
    install(BEST, LAST)
    for _ in range(3):
        ran()
    assert len(fakes.builds) == 1
    kernelyard.ops.scale(X, 3.0)
    ran(torch.ones(2, 5))
    ran(torch.ones(4, 2).t())
    assert len(fakes.builds) == 4


def test_one_shape_in_two_dtypes_is_bound_twice(install: Install) -> None:
    install(make_kernel("fake.best", "told_dtype", priority=1), LAST)
    for dtype in (torch.bfloat16, torch.float16, torch.bfloat16):
        assert ran(X.to(dtype)) == 2


def test_a_change_of_plugins_drops_what_was_chosen(install: Install) -> None:
    install(BEST, LAST)
    operator = kernelyard.ops.scale
    assert ran() == 1
    registry.reset(make_registry(NEXT, LAST))
    assert ran() == 2 and float(operator(X).flatten()[0]) == 2


def test_an_operator_kept_over_a_change_of_its_schema_says_so(install: Install) -> None:
    install(BEST, LAST)
    operator = kernelyard.ops.scale
    install(BEST, LAST, op=make_op(schema="(Tensor x, float factor=3.0) -> Tensor"))
    with pytest.raises(kernelyard.errors.UsageError, match=r"Take kernelyard.ops.scale anew"):
        operator(X)
    assert ran() == 1


def test_explain_says_what_a_call_would_run_and_builds_nothing(install: Install) -> None:
    install(make_kernel("fake.best", 1, priority=2, support=WIDE), NEXT, LAST)
    told = kernelyard.explain("scale", X, factor=3.0)
    assert told.kernel.name == "fake.next" and rejected(told) == {"fake.best": "cols is 4, the least is 100"} and fakes.builds == []
    with pytest.raises(kernelyard.errors.InvalidInput, match="'x' is of type int"):
        kernelyard.explain("scale", 3)


@pytest.mark.parametrize("determinism", ["none", "run-to-run", "bitwise"])
def test_a_caller_can_ask_for_determinism(install: Install, prove: Callable[..., None], determinism: str) -> None:
    best: Kernel = make_kernel("fake.best", 1, priority=1, determinism=determinism)
    install(best, LAST)
    prove(*(kernel for kernel in (best, LAST) if kernel.determinism != "none"))
    with kernelyard.use(deterministic=True):
        assert ran() == (3 if determinism == "none" else 1)
        if determinism == "none":
            assert rejected(chosen()) == {"fake.best": "determinism was asked for and it declares none"}
            with kernelyard.use(scale="fake.best"), pytest.raises(Unsupported, match="determinism was asked for"):
                ran()
        with kernelyard.use(deterministic=False):
            assert ran() == 1
    assert ran() == 1
