"""Pins: nesting, exceptions, threads and tasks, and the environment."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable

import pytest
import torch

import kernelyard
from kernelyard.errors import UnknownName, UsageError
from kernelyard.registry import registry
from kernelyard.registry.registry import Registry
from tests.registry import fakes
from tests.registry.fakes import make_kernel

Install = Callable[..., Registry]
KERNELS = [make_kernel("fake.one", 1, priority=1), make_kernel("fake.two", 2), make_kernel("fake.last", 3)]
X = torch.ones(2, 4)


def ran() -> float:
    return float(kernelyard.ops.scale(X).flatten()[0])


@pytest.fixture(autouse=True)
def installed(install: Install) -> None:
    install(*KERNELS)


def test_inner_pins_win_and_the_outer_ones_come_back(prove: Callable[..., None]) -> None:
    prove(*KERNELS)
    with kernelyard.use(scale="fake.two"):
        with kernelyard.use(scale="fake.last"):
            assert ran() == 3
        with kernelyard.use(deterministic=True):
            assert ran() == 2, "inner pins add to outer ones"
        assert ran() == 2
    assert ran() == 1


def test_an_exception_inside_restores_the_pins() -> None:
    with pytest.raises(ZeroDivisionError), kernelyard.use(scale="fake.two"):
        raise ZeroDivisionError
    assert ran() == 1


def test_use_decorates_a_function() -> None:
    assert kernelyard.use(scale="fake.two")(ran)() == 2 and ran() == 1


def test_entering_use_again_builds_nothing_anew() -> None:
    for _ in range(3):
        with kernelyard.use(scale="fake.two"):
            ran()
    assert len(fakes.builds) == 1


@pytest.mark.parametrize(
    ("pins", "told"), [({"scale": "fake.three"}, "no kernel of scale named 'fake.three'"), ({"scales": "fake.one"}, "no op named 'scales'")]
)
def test_a_pin_of_what_does_not_exist_raises_on_entry(pins: dict[str, str], told: str) -> None:
    with pytest.raises(UnknownName, match=told), kernelyard.use(**pins):
        raise AssertionError("entered")
    assert ran() == 1


def test_another_thread_has_its_own_pins_unless_it_is_given_ours() -> None:
    seen: dict[str, float] = {}

    def look(name: str) -> None:
        seen[name] = ran()

    with kernelyard.use(scale="fake.two"):
        ours = contextvars.copy_context()
        threads = [threading.Thread(target=look, args=("fresh",)), threading.Thread(target=ours.run, args=(look, "given"))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert seen == {"fresh": 1, "given": 2}


def test_tasks_that_take_turns_keep_their_own_pins() -> None:
    async def pinned(kernel: str, turn: asyncio.Barrier) -> float:
        with kernelyard.use(scale=kernel):
            await turn.wait()
            return ran()

    async def both() -> list[float]:
        turn = asyncio.Barrier(2)
        return await asyncio.gather(pinned("fake.one", turn), pinned("fake.two", turn))

    assert asyncio.run(both()) == [1, 2]


def test_many_threads_that_call_at_once_all_get_an_answer(install: Install) -> None:
    install(*KERNELS)
    start, results = threading.Barrier(8), list[float]()

    def call() -> None:
        start.wait()
        results.append(ran())

    threads = [threading.Thread(target=call) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [1.0] * 8


def set_environment(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("KERNELYARD_USE", text)
    registry.reset(registry.current())


@pytest.mark.parametrize("text", ["scale=fake.two", " scale = fake.two , "])
def test_the_environment_pins_under_the_caller(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    set_environment(monkeypatch, text)
    assert ran() == 2
    with kernelyard.use(scale="fake.last"):
        assert ran() == 3


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("scale", "KERNELYARD_USE has 'scale'. Write op=kernel"),
        ("scale=fake.three", "KERNELYARD_USE has 'scale=fake.three': no kernel of scale named 'fake.three'. There are: fake.last"),
        ("scales=fake.one", "no op named 'scales'. There are: scale"),
    ],
)
def test_an_environment_that_cannot_be_meant_is_refused(monkeypatch: pytest.MonkeyPatch, text: str, told: str) -> None:
    set_environment(monkeypatch, text)
    with pytest.raises(UsageError) as caught:
        ran()
    assert told in str(caught.value) and caught.value.exit_code == 2
