"""Who goes to finals and who wins, on times that are made up: the fastest, and for a tie the reference, the default, the simpler."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from kernelyard.registry.op import Op
from kernelyard.registry.spec import Config, Status, TensorSpec, Timing, Workload
from kernelyard.tuner.bench import Bench, Finished, Item, Result, Times
from kernelyard.tuner.finals import Finalist, Outcome, lineup, play
from kernelyard.tuner.limits import Limits, Options
from kernelyard.tuner.plan import KernelPlan, Plan

WORKLOAD = Workload("twice", (("x", TensorSpec((8,), "float32")),), (), "cpu", (("n", 8),))


@dataclass(frozen=True)
class _Op:
    name: str = "twice"
    fallback: str = "torch.eager"


OP = cast(Op, _Op())


@dataclass
class FakeBench:
    """Gives every kernel and width the batches that the test says; `broken` ones fail when timed."""

    batches: Mapping[tuple[str, int], list[float]]
    broken: frozenset[str] = frozenset()
    unbuildable: frozenset[str] = frozenset()
    impossible: frozenset[str] = frozenset()
    asked: list[tuple[str, ...]] = field(default_factory=list)

    def prepare(self, item: Item) -> Result:
        return Result(Status.BUILD_FAILED, "no compiler") if item.kernel in self.unbuildable else Result(Status.OK, build_s=1.0)

    def time(self, items: Sequence[Item], options: Options, mode: str = "device", ceiling: bool = False) -> Times | Result:
        self.asked.append(tuple(item.kernel for item in items))
        if any(item.kernel in self.broken for item in items):
            return Result(Status.TIMED_OUT, "still running after 30 s")
        samples = {item.id: [[us] for us in self.batches[item.kernel, int(item.config.get("width", 0))]] for item in items}
        timings = {name: timing([us for (us,) in batches]) for name, batches in samples.items()}
        idle = {item.id: "impossible: 0.1 us" for item in items if item.kernel in self.impossible and mode == "device"}
        return Times("1", timings, samples, {}, idle)


def timing(values: list[float]) -> Timing:
    ordered = sorted(values)
    return Timing(ordered[len(ordered) // 2], ordered[0], ordered[-1], "device", "monotonic", len(values), 30)


EAGER = Finalist(Item("torch.eager", {}, WORKLOAD), True, order=(0, 0))
COMPILED = Finalist(Item("compile.default", {}, WORKLOAD), True, order=(0, 1))
PLAIN = Finalist(Item("torch.plain", {}, WORKLOAD), True, choosable=False, order=(0, 2))
DEFAULT = Finalist(Item("cpp.one", {"width": 4}, WORKLOAD), False, default=True, order=(1, 2, 0))
NARROW = Finalist(Item("cpp.one", {"width": 2}, WORKLOAD), False, order=(1, 1, 0))
WIDE = Finalist(Item("cpp.one", {"width": 8}, WORKLOAD), False, order=(1, 3, 0))
OTHER = Finalist(Item("triton.row", {"width": 4}, WORKLOAD), False, default=True, order=(1, 2, 1))


def steady(us: float) -> list[float]:
    return [us * (1 + step / 1000) for step in (-1, 0, 1, 0, 1)]


def unsteady(us: float) -> list[float]:
    return [us * factor for factor in (0.8, 1.3, 0.9, 1.2, 1.0)]


def final(*times: tuple[Finalist, list[float]], **more: Any) -> tuple[Outcome, FakeBench]:
    bench = FakeBench({(f.name, int(f.item.config.get("width", 0))): batches for f, batches in times}, **more)
    return play(cast(Bench, bench), OP, [f for f, _ in times], Limits()), bench


def test_the_fastest_wins() -> None:
    outcome, _ = final((EAGER, steady(9)), (COMPILED, steady(7)), (DEFAULT, steady(5)), (WIDE, steady(4)))
    assert outcome.winner is WIDE and "fastest" in outcome.reason


@pytest.mark.parametrize(("winner", "eager", "compiled"), [(EAGER, 3, 9), (COMPILED, 9, 3)])
def test_a_reference_that_is_fastest_wins(winner: Finalist, eager: float, compiled: float) -> None:
    outcome, _ = final((EAGER, steady(eager)), (COMPILED, steady(compiled)), (DEFAULT, steady(5)), (WIDE, steady(4)))
    assert outcome.winner is winner


def test_a_time_that_the_device_cannot_reach_wins_nothing() -> None:
    outcome, _ = final((EAGER, steady(9)), (DEFAULT, steady(0.1)), (OTHER, steady(5)), impossible=frozenset({"cpp.one"}))
    assert outcome.winner is OTHER
    assert outcome.results[DEFAULT.item.id].status is Status.WRONG and "impossible" in outcome.results[DEFAULT.item.id].reason


def test_a_tie_with_the_reference_keeps_the_reference() -> None:
    outcome, _ = final((EAGER, unsteady(4.05)), (DEFAULT, steady(4)))
    assert outcome.winner is EAGER and "no difference from cpp.one" in outcome.reason


def test_a_tie_keeps_the_default_of_the_leading_kernel() -> None:
    outcome, _ = final((EAGER, steady(9)), (DEFAULT, unsteady(4.1)), (WIDE, steady(4)), (NARROW, unsteady(4.05)))
    assert outcome.winner is DEFAULT and "default" in outcome.reason


def test_a_tie_without_the_default_keeps_the_simpler() -> None:
    outcome, _ = final((EAGER, steady(9)), (DEFAULT, steady(6)), (WIDE, steady(4)), (NARROW, unsteady(4.1)))
    assert outcome.winner is NARROW and "simpler" in outcome.reason


def test_the_default_of_another_kernel_is_not_kept_before_a_simpler_config() -> None:
    outcome, _ = final((EAGER, steady(9)), (OTHER, unsteady(4.1)), (WIDE, steady(4)), (NARROW, unsteady(4.1)))
    assert outcome.winner is NARROW


def test_what_is_kept_for_a_tie_is_not_slower_than_a_reference() -> None:
    outcome, _ = final((EAGER, steady(9)), (COMPILED, steady(4.05)), (DEFAULT, unsteady(4.3)), (WIDE, steady(4)))
    assert outcome.winner is WIDE


def test_a_time_below_the_clocks_resolution_is_no_win() -> None:
    outcome, _ = final((EAGER, steady(9)), (WIDE, [0.0] * 5))
    assert outcome.winner is EAGER


def test_what_is_only_there_to_compare_with_is_timed_and_never_chosen() -> None:
    outcome, _ = final((EAGER, steady(9)), (PLAIN, steady(2)), (WIDE, steady(4)))
    assert outcome.winner is WIDE and outcome.timing(PLAIN) is not None


def test_a_compiled_reference_that_does_not_build_is_recorded_and_the_rest_goes_on() -> None:
    outcome, _ = final((EAGER, steady(9)), (COMPILED, steady(7)), (WIDE, steady(4)), unbuildable=frozenset({"compile.default"}))
    assert outcome.winner is WIDE and outcome.timing(COMPILED) is None
    assert outcome.results[COMPILED.item.id].status is Status.BUILD_FAILED


def test_one_that_hangs_only_in_finals_is_dropped_and_the_rest_timed() -> None:
    outcome, bench = final((EAGER, steady(9)), (OTHER, steady(1)), (WIDE, steady(4)), broken=frozenset({"triton.row"}))
    assert outcome.winner is WIDE
    assert outcome.results[OTHER.item.id].status is Status.TIMED_OUT and "in finals" in outcome.results[OTHER.item.id].reason
    assert bench.asked[-1] == ("torch.eager", "cpp.one")


def test_noise_that_hides_a_difference_is_timed_for_longer() -> None:
    _, calm = final((EAGER, steady(9)), (WIDE, steady(4)))
    _, noisy = final((EAGER, unsteady(4.3)), (WIDE, unsteady(4)[::-1]))
    assert len(noisy.asked) == len(calm.asked) + 1


def test_nothing_to_time_is_no_winner() -> None:
    outcome, _ = final((EAGER, steady(9)), unbuildable=frozenset({"torch.eager"}))
    assert outcome.winner is None and outcome.reason


def trial(us: float, **config: int) -> Finished:
    return Finished(config, Result(Status.OK, timing=timing([us])))


def test_finals_are_the_references_each_kernels_best_the_best_few_and_the_leaders_default() -> None:
    from kernelyard.registry.kernel import Kernel, Support
    from kernelyard.registry.space import ConfigSpace, Parameter

    def kernel(name: str, backend: str, space: ConfigSpace) -> Kernel:
        return Kernel(name, "twice", backend, "twice x", "some.module:entry", Support(("cpu",), ("float32",)), space)

    def default(workload: Workload) -> Config:
        return {"width": 32}

    space = ConfigSpace((Parameter("width", (1, 2, 4, 8, 16, 32), "how wide"),), default=default)
    searches = tuple(KernelPlan(kernel(f"{name}.k", name, space), (), None, 6, 0, "", {}) for name in ("cpp", "triton", "pallas"))
    plan = Plan(WORKLOAD, searches, (kernel("torch.eager", "torch", ConfigSpace()),), frozenset(), {})
    finished = {
        "cpp.k": [trial(5, width=1), trial(1, width=2), trial(2, width=4), trial(3, width=8), trial(9, width=32)],
        "triton.k": [trial(8, width=1), trial(7, width=2)],
        "pallas.k": [Finished({"width": 1}, Result(Status.WRONG, "wrong"))],
    }
    entered = [(f.name, f.item.config.get("width")) for f in lineup(plan, OP, finished)]
    assert entered == [("torch.eager", None), ("cpp.k", 2), ("cpp.k", 4), ("cpp.k", 8), ("triton.k", 2), ("cpp.k", 32)]
