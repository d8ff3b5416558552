"""Every watched piece of global state can be seen to change, and is put back."""

from __future__ import annotations

import os
import random
import sys
import time
import warnings

import numpy
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
        (lambda: torch.use_deterministic_algorithms(True), "deterministic algorithms"),
        (lambda: setattr(torch.backends.cudnn, "allow_tf32", False), "TF32 in cuDNN (True -> False)"),
        (lambda: setattr(torch.backends.cudnn, "benchmark", True), "cuDNN's settings"),
        (lambda: setattr(torch.backends.cuda.matmul, "allow_fp16_reduced_precision_reduction", False), "reduced precision in matmul"),
        (lambda: torch.set_default_device("meta"), "the default device (cpu -> meta)"),
        (lambda: torch.set_anomaly_enabled(True), "anomaly detection (False -> True)"),
        (lambda: torch.set_autocast_enabled("cuda", True), "autocast"),
        (lambda: numpy.seterr(divide="ignore"), "NumPy's handling of floating-point errors (divide)"),
        (lambda: numpy.random.seed(7), "NumPy's random state"),
        (lambda: warnings.simplefilter("ignore"), "filters of warnings"),
        (lambda: setattr(sys, "stdout", sys.stderr), "standard output and error"),
        (lambda: sys.setrecursionlimit(54321), "the recursion limit ({limit} -> 54321)"),
    ],
)
def test_change_is_named_and_put_back(meddle, words: str) -> None:
    before, limit = state.snapshot(CPU), sys.getrecursionlimit()  # which libraries raise
    meddle()
    assert state.changed(before, state.snapshot(CPU)) == [words.format(limit=limit)]
    state.restore(before)
    assert state.changed(before, state.snapshot(CPU)) == []


def test_narrow_filters_that_libraries_add_when_imported_are_theirs() -> None:
    before = state.snapshot(CPU)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="a library's own")
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
