"""Rotated argument sets: equal values and layouts, memory of their own, one turn for all."""

from __future__ import annotations

import itertools

import pytest
import torch

from kernelyard.contracts.rmsnorm import RMSNORM
from kernelyard.contracts.softmax import SOFTMAX
from kernelyard.contracts.vector_add import VECTOR_ADD
from kernelyard.measure import arguments
from kernelyard.measure.arguments import MB, Rotation, rotate, rotation
from kernelyard.registry.op import Point


@pytest.mark.parametrize("layout", ["contiguous", "row_strided", "transposed", "broadcast", "offset"])
def test_every_set_is_the_same_workload_in_memory_of_its_own(layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arguments, "CPU_LEAST_BYTES", 4 * MB)
    workload = SOFTMAX.workload(Point((64, 1024), "float32", layout))
    sets = rotation(SOFTMAX, workload).sets
    assert len(sets) > 4 or layout == "broadcast"
    assert all(SOFTMAX.workload_of(args) == workload for _, args in sets)
    assert all(torch.equal(args[0], sets[0][1][0]) for _, args in sets)
    addresses = {tensor.data_ptr() for outputs, args in sets for tensor in (*outputs, args[0])}
    assert len(addresses) == 2 * len(sets)


def test_small_sets_are_many_and_large_ones_at_least_two(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arguments, "CPU_LEAST_BYTES", 4 * MB)
    monkeypatch.setattr(arguments, "last_level_cache_bytes", lambda: 1 * MB)  # of whatever machine this runs on
    small = rotation(RMSNORM, RMSNORM.workload(Point((1, 4096), "float32")))
    assert small.total_bytes >= 4 * MB
    large = rotation(VECTOR_ADD, VECTOR_ADD.workload(Point((1 << 20,), "float32")))
    assert len(large.sets) == 2


def test_empty_tensors_are_a_workload_too() -> None:
    assert rotation(RMSNORM, RMSNORM.workload(Point((0, 128), "float32"))).sets


def test_a_cache_that_can_be_flushed_is_and_one_that_cannot_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = (torch.zeros(4 * MB),)
    monkeypatch.setattr(arguments, "last_level_cache_bytes", lambda: 40 * MB)
    assert rotate((), tensors, "cpu").cache == "rotated 80 MB in 5 sets"
    monkeypatch.setattr(arguments, "last_level_cache_bytes", lambda: 260 * MB)
    assert rotate((), tensors, "cpu").cache == "rotated 64 MB in 4 sets; the last-level cache of 260 MB is not flushed"
    monkeypatch.setattr(arguments, "last_level_cache_bytes", lambda: 0)
    assert "unknown" in rotate((), tensors, "cpu").cache


def test_two_candidates_draw_from_one_turn() -> None:
    shared = Rotation([((), (i,)) for i in range(3)], 1, "")
    first = [args[0] for _, args in itertools.islice(shared.turn, 2)]
    second = [args[0] for _, args in itertools.islice(shared.turn, 2)]
    assert first + second == [0, 1, 2, 0]
