"""Where a time stands: its share of the ceiling, why it may be above, and when it is called impossible."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from kernelyard.contracts.attention_decode import ATTENTION_DECODE
from kernelyard.contracts.vector_add import VECTOR_ADD
from kernelyard.measure import roofline
from kernelyard.measure.arguments import rotation
from kernelyard.measure.ceilings import Ceilings, Copy
from kernelyard.measure.protocol import Candidate, measure
from kernelyard.registry.backend import Executable
from kernelyard.registry.op import Point
from kernelyard.registry.spec import Cost, Timing

FOUND = Ceilings("cpu/x", "2026-01-01T00:00:00Z", copy_gbps=10.0, read_gbps=12.0, peak_gbps=100.0, matrix_tflops={"float32": 0.1})
GPU = replace(FOUND, device_key="cuda/x")
COST = Cost(bytes=100_000_000, flops=0)
"""1000 us at the peak of 100 GB/s, 10000 us at the copy's 10."""


def timing(median_us: float, clock: str = "monotonic", mode: str = "device", high_us: float | None = None) -> Timing:
    return Timing(median_us, median_us, median_us if high_us is None else high_us, mode, clock, 3, 100)


def test_the_limit_is_the_longer_of_bytes_and_operations() -> None:
    assert roofline.limit_us(Cost(4096, 1), "float32", FOUND, copied_us=7.0) == 7.0
    assert roofline.limit_us(Cost(4096, 10**6), "float32", FOUND, copied_us=7.0) == pytest.approx(10.0)
    assert roofline.limit_us(Cost(4096, 10**6), "int8", FOUND, copied_us=7.0) == 7.0


def test_without_a_copy_of_the_same_run_the_large_copys_rate_is_taken() -> None:
    assert roofline.limit_us(COST, "float32", FOUND) == pytest.approx(10_000)


def test_a_percentage_where_there_is_none_is_none() -> None:
    assert roofline.standing(COST, timing(20_000.0), "float32", FOUND, 10_000.0).percent == pytest.approx(50)
    assert roofline.standing(Cost(0, 0), timing(1.0), "float32", FOUND).percent is None
    assert roofline.standing(Cost(8, 0), timing(0.0), "float32", FOUND).percent is None


def test_a_time_that_beats_the_copy_is_above_100_and_says_why_that_can_be() -> None:
    found = roofline.standing(COST, timing(8_000.0), "float32", FOUND, 10_000.0)
    assert found.percent == pytest.approx(125) and not found.impossible
    assert "streams its stores" in found.above and "reads more than it writes" in found.above
    assert "L2" in roofline.standing(COST, timing(8_000.0), "float32", GPU, 10_000.0).above
    assert roofline.standing(COST, timing(10_000.0), "float32", FOUND, 10_000.0).above == ""


def test_what_lies_within_the_uncertainty_is_said_to() -> None:
    assert "uncertainty" in roofline.standing(COST, timing(9_900.0, high_us=10_100.0), "float32", FOUND, 10_000.0).above


def test_only_data_that_a_cache_can_hold_is_said_to_stay_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roofline, "last_level_cache_bytes", lambda: 200_000_000)
    assert "stays in the caches" in roofline.standing(COST, timing(8_000.0), "float32", FOUND, 10_000.0).above
    monkeypatch.setattr(roofline, "last_level_cache_bytes", lambda: 1_000_000)
    assert "stays in the caches" not in roofline.standing(COST, timing(8_000.0), "float32", FOUND, 10_000.0).above


def test_a_time_below_the_floor_is_impossible_and_no_percentage_excuses_it() -> None:
    reason = roofline.impossible(COST, timing(500.0), FOUND)
    assert "impossible: 500 us for 95.4 MB" in reason and "1e+03 us" in reason
    found = roofline.standing(COST, timing(500.0), "float32", FOUND, 10_000.0)
    assert found.impossible == reason and found.above == ""
    assert roofline.impossible(COST, timing(950.0), FOUND) == ""
    assert roofline.impossible(COST, timing(500.0, clock="events"), FOUND) == ""
    assert roofline.impossible(COST, timing(500.0, mode="call"), FOUND) == ""
    assert roofline.impossible(Cost(0, 10**9), timing(100.0), FOUND)


@pytest.mark.parametrize("block", [0, 50])
def test_the_time_that_the_timed_sequences_need_is_possible_however_long_others_may_be(block: int) -> None:
    """Of 16 sequences that differ in length, their tokens counted by what is no NaN."""
    workload = ATTENTION_DECODE.workload(Point((16, 2, 2, 1, 4100, 8, block), "float32"))
    (out,), (q, k, v, *_) = rotation(ATTENTION_DECODE, workload).sets[0]
    least_us = sum((~some.isnan()).sum().item() * some.element_size() for some in (out.zero_(), q, k, v)) / (FOUND.peak_gbps * 1e3)
    found = replace(FOUND, matrix_tflops={})
    assert roofline.impossible(ATTENTION_DECODE.cost(workload), timing(least_us), found) == ""
    assert roofline.impossible(ATTENTION_DECODE.cost(workload), timing(0.85 * least_us), found)


def test_a_product_is_held_to_the_fastest_way_there_is() -> None:
    """A CPU may widen bfloat16, and float32 may be asked for in TF32: what is slower by itself is no floor."""
    rates = replace(FOUND, matrix_tflops={"float32": 0.1, "bfloat16": 0.02})
    work = Cost(0, 10**9)
    assert roofline.limit_us(work, "bfloat16", rates) == pytest.approx(10_000)
    assert roofline.impossible(work, timing(9_500.0), rates) == "" and roofline.impossible(work, timing(5_000.0), rates)
    fast = replace(FOUND, matrix_tflops={"float32": 0.1, "bfloat16": 1.0})
    assert roofline.limit_us(work, "float32", fast) == pytest.approx(10_000) and roofline.impossible(work, timing(2_000.0), fast) == ""


def test_a_time_too_short_for_the_clock_is_impossible_only_for_work_that_the_clock_can_see() -> None:
    assert "less than the clock can tell" in roofline.impossible(COST, timing(0.0), FOUND)
    assert roofline.impossible(Cost(50_000, 0), timing(0.0), FOUND) == ""


def test_ceilings_measured_in_noise_accuse_only_what_no_noise_explains() -> None:
    noisy = replace(FOUND, noisy="a neighbour")
    assert roofline.impossible(COST, timing(500.0), noisy) == ""
    assert roofline.impossible(COST, timing(100.0), noisy)


def test_the_ceiling_can_be_timed_beside_the_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernelyard.measure.arguments.CPU_LEAST_BYTES", 1 << 20)
    monkeypatch.setattr(roofline, "best_copy", lambda nbytes, device_type: Copy("one thread", 1.0))
    workload = VECTOR_ADD.workload(Point((1000,), "float32"))
    candidate = roofline.copy_candidate(VECTOR_ADD, workload)
    add = Candidate("add", VECTOR_ADD, workload, Executable(torch.add))
    measured = measure([candidate, add], device_type="cpu", most_batches=3, budget_s=0.05)
    assert candidate.arguments is not None and candidate.arguments().set_bytes == 12_000 == VECTOR_ADD.cost(workload).bytes
    assert measured["copy"].median_us > 0
