"""Occupancy on values that NVIDIA's calculator gives, and what limits it."""

from __future__ import annotations

import math

import pytest

from kernelyard.measure.occupancy import BLOCKS, Launch, Multiprocessor, occupancy

H200 = Multiprocessor(count=132)


@pytest.mark.parametrize(
    ("launch", "blocks", "warps", "limiter"),
    [
        (Launch(registers=32, shared_bytes=0, warps=8, blocks=1), 8, 64, "warps"),
        (Launch(registers=33, shared_bytes=0, warps=8, blocks=1), 6, 48, "registers"),  # 33 x 32 is rounded up to 1280: 12 warps a quarter
        (Launch(registers=64, shared_bytes=0, warps=8, blocks=1), 4, 32, "registers"),
        (Launch(registers=255, shared_bytes=0, warps=4, blocks=1), 2, 8, "registers"),
        (Launch(registers=168, shared_bytes=0, warps=12, blocks=1), 1, 12, "registers"),  # a quarter holds 3 warps, not 3.05
        (Launch(registers=16, shared_bytes=0, warps=1, blocks=1), 32, 32, "blocks"),
        (Launch(registers=32, shared_bytes=48 * 1024, warps=4, blocks=1), 4, 16, "shared memory"),  # 49 KiB each with the reserved one
        (Launch(registers=32, shared_bytes=227 * 1024, warps=4, blocks=1), 1, 4, "shared memory"),
        (Launch(registers=32, shared_bytes=113 * 1024, warps=4, blocks=1), 2, 8, "shared memory"),
        (Launch(registers=32, shared_bytes=113 * 1024 + 1, warps=4, blocks=1), 1, 4, "shared memory"),
    ],
)
def test_hopper_holds_as_many_blocks_as_the_scarcest_resource_allows(launch: Launch, blocks: int, warps: int, limiter: str) -> None:
    found = occupancy(launch, H200)
    assert (found.blocks, found.blocks * launch.warps, found.limiter) == (blocks, warps, limiter)
    assert found.share == warps / 64


def test_waves_count_the_launchs_blocks_in_units_of_all_that_fit_at_once() -> None:
    assert occupancy(Launch(32, 0, 8, blocks=2 * 8 * 132), H200).waves == 2
    half = occupancy(Launch(32, 0, 8, blocks=4 * 132), H200)
    assert (half.waves, half.share, half.filled) == (0.5, 1.0, 0.5)


def test_a_block_that_asks_for_more_than_there_is_fits_nowhere() -> None:
    found = occupancy(Launch(32, 228 * 1024, 4, 1), H200)
    assert (found.blocks, found.share, found.waves) == (0, 0.0, math.inf)


def test_older_architectures_have_fewer_warps_blocks_and_less_shared_memory() -> None:
    a10 = Multiprocessor(count=72, shared_bytes=100 * 1024, warps=48, blocks=BLOCKS[8, 6])
    a100 = Multiprocessor(count=108, shared_bytes=164 * 1024, blocks=BLOCKS[8, 0])
    assert occupancy(Launch(16, 0, 1, 1), a10).blocks == 16
    assert occupancy(Launch(32, 0, 8, 1), a10).share == 1.0
    assert occupancy(Launch(32, 49 * 1024, 4, 1), a10).blocks == 2
    assert occupancy(Launch(32, 40 * 1024, 4, 1), a100).blocks == 4


def test_the_table_has_the_blocks_of_ampere_ada_hopper_and_blackwell() -> None:
    assert [BLOCKS[capability] for capability in ((8, 0), (8, 6), (8, 9), (9, 0), (10, 0))] == [32, 16, 24, 32, 32]
