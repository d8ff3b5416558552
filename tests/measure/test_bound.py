"""Three sentences on a time: its ceiling, what the kernel takes of the device, and what bounds it, from plain figures."""

from __future__ import annotations

from collections.abc import Mapping

from kernelyard.contracts.vector_add import VECTOR_ADD
from kernelyard.measure.bound import Cpu, Gpu, explain
from kernelyard.measure.ceilings import Ceilings
from kernelyard.measure.occupancy import Multiprocessor
from kernelyard.registry.op import Point
from kernelyard.registry.spec import Timing

WORKLOAD = VECTOR_ADD.workload(Point((1 << 20,), "float32"), "cpu")
BYTES, FLOPS = 3 * 4 << 20, 1 << 20
FOUND = Ceilings("gpu/x", "2026-01-01T00:00:00Z", copy_gbps=1000.0, read_gbps=1200.0, peak_gbps=1300.0, matrix_tflops={"float32": 1.0})
H200 = Gpu(Multiprocessor(count=132), empty_us=1.0)
TOLD = {"registers": 32, "spills": 0, "shared_bytes": 0, "programs": 4096, "warps": 4}
COPY_US = 12.0


def said(
    us: float, resources: Mapping[str, int] = TOLD, facts: Gpu | Cpu = H200, *, copy_us: float | None = COPY_US, found: Ceilings = FOUND
) -> tuple[str, str, str]:
    timing = Timing(us, us, us, "device", "graph", 3, 100)
    limit_us = BYTES / (found.copy_gbps * 1e3) if copy_us is None else copy_us
    return explain(VECTOR_ADD, WORKLOAD, timing, resources=resources, limit_us=limit_us, copy_us=copy_us, ceilings=found, facts=facts)


def test_the_first_sentence_has_the_share_of_the_ceiling_and_the_rates_that_were_reached() -> None:
    assert VECTOR_ADD.cost(WORKLOAD).bytes == BYTES and VECTOR_ADD.cost(WORKLOAD).flops == FLOPS
    first = said(16.0)[0]
    assert first.startswith("16 us, 75% of its ceiling of 12 us: the op's 12 MB at 786.4 GB/s (large copy: 1000) and 0.0655 TFLOP/s.")


def test_a_time_of_nothing_has_no_rates() -> None:
    first, _, bound = said(0.0)
    assert "too coarse" in first and "not clear" in bound


def test_the_second_sentence_has_what_the_kernel_takes_of_a_gpu() -> None:
    assert said(16.0)[1] == (
        "32 registers a thread, 0 spills, 0 bytes of shared memory a block; occupancy 100% (full, 16 blocks a multiprocessor), 1.94 waves."
    )
    assert "occupancy 50% (limited by registers, 8 blocks" in said(16.0, {**TOLD, "registers": 64})[1]


def test_what_is_not_told_is_named_and_no_occupancy_is_made_up() -> None:
    untold = said(16.0, {"registers": 32, "shared_bytes": 0})[1]
    assert untold.startswith("32 registers a thread, 0 bytes of shared memory a block; not told: spills, programs, warps;")
    assert untold.endswith("so its occupancy is unknown.")
    assert said(16.0, {})[1].startswith("The compiler tells nothing of it; not told: registers, spills,")
    assert "occupancy is unknown" in said(16.0, TOLD, Gpu())[1]


def test_on_a_cpu_the_bytes_stand_against_the_last_level_cache() -> None:
    assert "don't fit" in said(16.0, {}, Cpu(threads=2, cache_bytes=8 << 20))[1]
    assert "resident" in said(16.0, {}, Cpu(threads=2, cache_bytes=32 << 20))[1]
    untold = said(16.0, {}, Cpu(threads=1, cache_bytes=0))[1]
    assert untold == "1 thread; the op moves 12 MB, and the size of the last-level cache is not told."


def test_at_four_fifths_of_the_copy_it_is_bound_by_memory() -> None:
    assert said(15.0)[2] == "Bound by memory: 80% of the rate of a copy of as many bytes."
    assert not said(15.1)[2].startswith("Bound by memory")


def test_without_a_copy_of_its_size_the_large_copys_rate_is_taken() -> None:
    assert said(13.0, copy_us=None)[2].startswith("Bound by memory: 97%")


def test_near_the_matrix_rate_it_is_bound_by_compute() -> None:
    slow = Ceilings("gpu/x", "", 1000.0, 1200.0, 1300.0, {"float32": FLOPS / 50.0 / 1e6})
    assert said(55.0, found=slow)[2] == "Bound by compute: 91% of the dtype's matrix rate."


def test_within_twice_an_empty_kernel_it_is_bound_by_launch_latency_though_the_copy_is_no_faster() -> None:
    assert said(2.0, copy_us=2.0)[2].startswith("Bound by launch latency: an empty kernel takes 1 us")
    assert said(2.1, copy_us=2.0)[2].startswith("Bound by memory")


def test_far_from_every_ceiling_spills_too_few_programs_and_low_occupancy_are_suspected_in_this_order() -> None:
    low = {**TOLD, "shared_bytes": 227 << 10}
    assert said(100.0, {**low, "spills": 8, "programs": 66})[2].startswith("Probably bound by spills: 8 registers")
    assert said(100.0, {**low, "programs": 66})[2].startswith("Probably bound by latency: its programs fill 50% of one wave")
    assert said(100.0, low)[2].startswith("Probably bound by occupancy: 6% of the warps, limited by shared memory")


def test_what_the_figures_leave_open_is_said_to_be_open() -> None:
    assert said(100.0)[2] == "What bounds it is not clear from these figures: 12% of the copy's rate and 1% of the matrix rate."
    assert said(100.0, {}, Cpu(2, 0))[2].startswith("What bounds it is not clear")
