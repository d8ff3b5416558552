"""Typical inputs of attention_decode: their lengths, and a cost that is of these and of no others."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from kernelyard.contracts import ATTENTION_DECODE
from kernelyard.contracts.attention_decode_inputs import FULL, counted, lengths
from kernelyard.registry.matrix import Point
from kernelyard.registry.op import TIMED_SEED
from kernelyard.registry.spec import Workload
from tests.contracts.cases import inputs

RAGGED = next(p for p in ATTENTION_DECODE.matrix("performance", "cuda").points if ATTENTION_DECODE.workload(p).dim("capacity") % FULL)


def work(*dims: int, dtype: str = "float32") -> Workload:
    return ATTENTION_DECODE.workload(Point(dims, dtype))


def read_bytes(args: tuple[Any, ...]) -> int:
    """Of k and v: what is no NaN, and lies in a block that the table names where there is one."""
    _, *cache, _, table, _ = args
    if table is not None:
        known = table[(table >= 0) & (table < cache[0].shape[0])].long()
        cache = [some[known] for some in cache]
    return sum((~some.isnan()).sum().item() * some.element_size() for some in cache)


def test_the_cost_of_the_frozen_ragged_point_is_what_its_inputs_read_with_q_and_output() -> None:
    workload = ATTENTION_DECODE.workload(RAGGED)
    args = inputs(ATTENTION_DECODE, workload, TIMED_SEED)
    read = read_bytes(args)
    assert 0 < read < 0.9 * sum(some.nbytes for some in args[1:3])
    assert ATTENTION_DECODE.cost(workload).bytes == pytest.approx(read + 2 * args[0].nbytes, rel=1e-4)


@pytest.mark.parametrize("dims", [(5, 4, 2, 3, 387, 8, 129), (5, 4, 1, 2, 20, 8, 1), (7, 6, 2, 1, 130, 8, 16), (2, 4, 2, 1, 48, 8, 16)])
def test_the_cost_of_a_paged_cache_leaves_out_blocks_that_are_none(dims: tuple[int, ...]) -> None:
    workload = work(*dims)
    args = inputs(ATTENTION_DECODE, workload, TIMED_SEED)
    assert (args[4][-1, 0] == args[1].shape[0]) and counted(workload, TIMED_SEED) != lengths(workload, TIMED_SEED)
    seeing = sum(min(n, dims[3]) for n in counted(workload, TIMED_SEED)) * dims[1] * dims[5] * 4
    assert ATTENTION_DECODE.cost(workload).bytes == read_bytes(args) + seeing + args[0].nbytes


@pytest.mark.parametrize("dims", [(4, 4, 2, 1, 130, 8, 0), (4, 4, 2, 5, 3, 8, 0), (5, 4, 2, 3, 387, 8, 129), (3, 4, 2, 16, 1024, 8, 64)])
def test_operations_are_those_of_the_pairs_that_see_each_other(dims: tuple[int, ...]) -> None:
    batch, q_heads, _, q_len, capacity, head_dim, block = dims
    workload = work(*dims)
    *_, some, table, _ = inputs(ATTENTION_DECODE, workload, TIMED_SEED)
    first = [0] * batch if table is None else [block * int(not 0 <= entry < batch * table.shape[1] + 3) for entry in table[:, 0].tolist()]
    pairs = sum(first[b] <= t < n - q_len + i + 1 for b, n in enumerate(some.tolist()) for i in range(q_len) for t in range(capacity))
    assert ATTENTION_DECODE.cost(workload).flops == 4 * pairs * q_heads * head_dim


def test_where_sequences_are_full_the_cost_is_of_whole_caches() -> None:
    for block in (0, 64):
        workload = work(16, 32, 8, 1, 4096, 128, block, dtype="bfloat16")
        assert ATTENTION_DECODE.cost(workload).bytes == 2 * 16 * 32 * 128 * 2 + 2 * 16 * 8 * 4096 * 128 * 2


@pytest.mark.parametrize("dims", [(0, 4, 2, 1, 16, 8, 0), (2, 4, 2, 1, 0, 8, 16), (2, 4, 2, 0, 16, 8, 0), (1, 4, 2, 1, 9, 8, 0)])
def test_little_work_costs_little(dims: tuple[int, ...]) -> None:
    cost, q = ATTENTION_DECODE.cost(work(*dims)), work(*dims)["q"].nbytes
    assert q <= cost.bytes <= 2 * q + 2 * dims[0] * dims[2] * dims[4] * dims[5] * 4 and (q or not cost.flops)


def test_lengths_are_those_of_the_seed_and_other_seeds_and_shapes_have_others() -> None:
    ragged = work(6, 4, 2, 1, 130, 8, 0)
    for seed in range(3):
        assert inputs(ATTENTION_DECODE, ragged, seed)[3].tolist() == list(lengths(ragged, seed))
    drawn = {lengths(ragged, seed)[3:] for seed in range(400)}
    assert len(drawn) == 400 and {n for some in drawn for n in some} == set(range(131))
    assert lengths(work(7, 4, 2, 1, 130, 8, 0), 0)[:6] != lengths(ragged, 0)


@pytest.mark.gpu
def test_a_gpu_has_the_lengths_that_the_cost_is_of() -> None:
    workload = ATTENTION_DECODE.workload(Point((6, 4, 2, 1, 130, 8, 0), "bfloat16"), "cuda")
    made = ATTENTION_DECODE.inputs(workload, torch.Generator("cuda").manual_seed(TIMED_SEED))[3]
    assert made.tolist() == list(lengths(workload, TIMED_SEED))
