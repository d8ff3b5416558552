"""The Triton attention over a cache as compiled for Hopper, and where a cache's sequences may start; its results are `check`'s business."""

from __future__ import annotations

import pytest
import torch

from kernelyard.contracts.attention_decode import ATTENTION_DECODE
from kernelyard.plugins.triton_jit.attention_decode_views import SPACE, rows_of, steady
from kernelyard.registry.op import Point


def workload(*dims: int):
    return ATTENTION_DECODE.workload(Point(dims, "bfloat16"), "cuda")


@pytest.mark.parametrize("point", ATTENTION_DECODE.matrices["performance/cuda"])
def test_the_default_is_a_config_of_its_own_space(point):
    shape = ATTENTION_DECODE.workload(point, "cuda")
    assert SPACE.allows(SPACE.default_for(shape), shape)


@pytest.mark.parametrize(("batch", "capacity", "parts"), [(1, 1024, 16), (1, 256, 4), (1, 32768, 16), (16, 4096, 4), (64, 4096, 1)])
def test_parts_make_a_program_a_multiprocessor_or_four_and_none_is_without_tokens(batch, capacity, parts):
    assert SPACE.default_for(workload(batch, 32, 8, 1, capacity, 128, 0))["parts"] == parts


def test_query_rows_beyond_64_take_several_programs():
    assert (rows_of(workload(1, 32, 4, 16, 64, 64, 0)).tile, rows_of(workload(1, 32, 4, 16, 64, 64, 0)).tiles) == (64, 2)


def test_a_cache_that_starts_between_vectors_is_copied_and_another_is_not():
    whole = torch.randn(2, 2, 8, 16)
    between = torch.randn(2, 2 * 8 * 16 + 1)[:, :-1].view(2, 2, 8, 16)
    assert steady(whole, 16) is whole
    copy = steady(between, 16)
    assert copy.stride(0) % 16 == 0 and copy.stride()[1:] == between.stride()[1:] and torch.equal(copy, between)
