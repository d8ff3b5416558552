"""A registry, pins and choices of a test's own, and the real ones back afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from kernelyard.registry import choices, proofs, registry, rules
from kernelyard.registry.backend import Backend
from kernelyard.registry.kernel import Kernel
from kernelyard.registry.machine import identity
from kernelyard.registry.op import Op
from kernelyard.registry.registry import Registry
from kernelyard.registry.source import Source
from kernelyard.registry.spec import Choice, Proof
from tests.registry import fakes


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Registry]]:
    """`install(*kernels, op=..., backends=...)` makes these the registry, with no stored choices and no proofs."""
    for stored in (choices, rules, proofs):
        monkeypatch.setattr(stored, "_source", Source())

    def put(*kernels: Kernel, op: Op = fakes.SCALE, backends: tuple[Backend, ...] = (fakes.make_backend(),)) -> Registry:
        table = fakes.make_registry(*kernels, op=op, backends=backends)
        registry.reset(table)
        fakes.builds.clear()
        return table

    yield put
    registry.reset()


@pytest.fixture
def store(install: Callable[..., Registry]) -> Callable[[Choice], None]:
    """`store(choice)` makes it the one stored choice; dispatch forgets what it had bound."""

    def put(choice: Choice) -> None:
        def find(op: str, workload_key: str, device_key: str, mode: str) -> Choice | None:
            asked = (op, workload_key, device_key, mode)
            return choice if asked == (choice.op, choice.workload_key, choice.device_key, choice.mode) else None

        choices.connect(find)
        registry.reset(registry.current())

    return put


@pytest.fixture
def prove(install: Callable[..., Registry]) -> Callable[..., None]:
    """`prove(*kernels, **changes)` makes these the kernels that have shown to be deterministic; each proof holds unless changed."""

    def put(*kernels: Kernel, **changes: object) -> None:
        table = registry.current()
        made = {k.name: proofs.proof_of(table.op(k.op), k, identity("cpu").key(), 9, table) for k in kernels}

        def find(op: str, kernel: str, device_key: str) -> Proof | None:
            proof = made.get(kernel)
            return replace(proof, **changes) if proof is not None and (op, device_key) == (proof.op, proof.device_key) else None

        proofs.connect(find)
        registry.reset(table)

    return put
