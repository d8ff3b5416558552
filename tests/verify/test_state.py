"""Every watched piece of global state can be seen to change, and is put back."""

from __future__ import annotations

import os
import random
import time

import pytest
import torch

from kernelyard.verify import state

CPU = torch.device("cpu")


def test_nothing_changed_reads_as_nothing() -> None:
    assert state.changed(state.snapshot(CPU), state.snapshot(CPU)) == []
    assert state.patched_clocks() == []


@pytest.mark.parametrize(
    ("meddle", "words"),
    [
        (lambda: torch.set_default_dtype(torch.float64), "the default dtype (torch.float32 -> torch.float64)"),
        (lambda: torch.manual_seed(12345), "torch's random state"),
        (lambda: random.seed(12345), "Python's random state"),
        (lambda: os.environ.update(KERNELYARD_TEST_A="1", PATH=""), "the environment (KERNELYARD_TEST_A, PATH)"),
        (lambda: os.environ.pop("PATH"), "the environment (PATH)"),
        (lambda: torch.use_deterministic_algorithms(True), "deterministic algorithms (False -> True)"),
        (lambda: setattr(torch.backends.cudnn, "allow_tf32", False), "TF32 in cuDNN (True -> False)"),
    ],
)
def test_change_is_named_and_put_back(meddle, words: str) -> None:
    before = state.snapshot(CPU)
    meddle()
    assert state.changed(before, state.snapshot(CPU)) == [words]
    state.restore(before)
    assert state.changed(before, state.snapshot(CPU)) == []


def test_variables_that_torch_sets_for_itself_are_its_own() -> None:
    before = state.snapshot(CPU)
    os.environ["TORCHINDUCTOR_TEST"] = "1"
    assert state.changed(before, state.snapshot(CPU)) == []
    del os.environ["TORCHINDUCTOR_TEST"]


def test_patched_clock_is_named_and_put_back() -> None:
    real = time.perf_counter_ns
    time.perf_counter_ns = lambda: 0
    assert state.patched_clocks() == ["time.perf_counter_ns"]
    state.restore_clocks()
    assert time.perf_counter_ns is real
