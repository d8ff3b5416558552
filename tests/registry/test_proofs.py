"""Asked for determinism, dispatch believes what a kernel has shown on this kind of device, and says what to run where it has not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import kernelyard
from kernelyard.errors import Unsupported
from kernelyard.registry import proofs, registry
from kernelyard.registry.dispatch import Selection, select
from kernelyard.registry.machine import identity
from kernelyard.registry.op import Point
from kernelyard.registry.registry import Registry
from kernelyard.registry.spec import Choice, DeclarationError, Determinism, Proof
from tests.registry import fakes
from tests.registry.fakes import SCALE, make_choice, make_kernel

Install = Callable[..., Registry]
Prove = Callable[..., None]
BEST, LAST = make_kernel("fake.best", 1, priority=1), make_kernel("fake.last", 3, determinism="run-to-run")
X = torch.ones(2, 4)
ASKED = SCALE.workload(Point((2, 4), "float32"))


def chosen() -> Selection:
    with kernelyard.use(deterministic=True):
        return select(registry.current().op("scale"), ASKED)


def reasons() -> dict[str, str]:
    return {one.kernel: one.reason for one in chosen().rejected}


def test_a_kernel_that_only_declares_it_is_passed_over_with_what_to_run(install: Install, prove: Prove) -> None:
    install(BEST, LAST)
    prove(LAST)
    assert chosen().kernel is LAST
    told = "determinism was asked for; it declares bitwise but has not shown it here: run `kernelyard check scale --kernel fake.best`"
    assert reasons() == {"fake.best": told}


def test_a_kernel_that_has_shown_it_serves(install: Install, prove: Prove) -> None:
    install(BEST, LAST)
    prove(BEST, LAST)
    assert chosen().kernel is BEST and chosen().rejected == ()
    with kernelyard.use(deterministic=True):
        assert float(kernelyard.ops.scale(X)[0, 0]) == 1


def test_where_none_has_shown_it_the_error_says_what_to_run(install: Install) -> None:
    install(BEST, LAST)
    with kernelyard.use(deterministic=True), pytest.raises(Unsupported, match="Run `kernelyard check scale`: what passes there"):
        kernelyard.ops.scale(X)
    assert float(kernelyard.ops.scale(X)[0, 0]) == 1, "without asking, nothing has to be shown"


def test_a_pinned_kernel_that_has_not_shown_it_raises_with_what_to_run(install: Install, prove: Prove) -> None:
    install(BEST, LAST)
    prove(LAST)
    with kernelyard.use(deterministic=True, scale="fake.best"), pytest.raises(Unsupported, match="check scale --kernel fake.best"):
        kernelyard.ops.scale(X)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"contract_hash": "old"}, "the contract of the op has changed since"),
        ({"source_hash": "old"}, "the kernel's source has changed since"),
        ({"matrix_hash": "old"}, "the correctness matrix has changed since"),
        ({"versions": {"fake": "0"}}, "fake was 0, is 1"),
        ({"determinism": Determinism.RUN_TO_RUN}, "it declared run-to-run then and bitwise now"),
    ],
)
def test_a_proof_is_void_once_something_changed(install: Install, prove: Prove, changes: dict[str, object], told: str) -> None:
    install(BEST)
    prove(BEST, **changes)
    with pytest.raises(Unsupported, match=f"fake.best: determinism was asked for; what it showed here is void, {told}: run `kernelyard"):
        chosen()


def test_a_stored_choice_that_holds_counts_for_its_workload(install: Install, store: Callable[[Choice], None]) -> None:
    install(BEST, LAST)
    store(make_choice(LAST, ASKED, identity("cpu")))
    assert chosen().kernel is LAST and "stored choice" in chosen().reason
    with kernelyard.use(deterministic=True), pytest.raises(Unsupported, match="has not shown it here"):
        kernelyard.ops.scale(torch.ones(3, 4))


def test_a_stored_choice_of_a_kernel_that_declares_none_does_not_count(install: Install, store: Callable[[Choice], None]) -> None:
    install(none := make_kernel("fake.best", 1, determinism="none"))
    store(make_choice(none, ASKED, identity("cpu")))
    with pytest.raises(Unsupported, match="stored choice, determinism was asked for and it declares none"):
        chosen()


def test_a_source_that_is_gone_makes_a_proof_void_and_does_not_crash(install: Install, prove: Prove, monkeypatch) -> None:
    install(BEST, LAST)
    prove(BEST, LAST)

    def gone(self: object) -> dict[str, str]:
        raise OSError("the compiler was removed")

    monkeypatch.setattr(fakes.Builder, "versions", gone)
    with pytest.raises(Unsupported, match="can't be read now: OSError: the compiler was removed"):
        chosen()


def test_no_determinism_and_no_cases_prove_nothing() -> None:
    fields = ("scale", "fake.best", "cpu/x", "c", "s", {}, proofs.MATRIX, "m")
    with pytest.raises(DeclarationError, match="declares no determinism"):
        Proof(*fields, 3, Determinism.NONE)
    with pytest.raises(DeclarationError, match="needs at least one case"):
        Proof(*fields, 0, Determinism.BITWISE)
