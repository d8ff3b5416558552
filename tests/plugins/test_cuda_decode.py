"""The CUDA kernels of a decode step: what they refuse and choose, what is built, and, on a GPU, whether they keep the contracts."""

from __future__ import annotations

import re
import subprocess
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from kernelyard.plugins.cuda import probe
from kernelyard.plugins.cuda.build import builder, recipe
from kernelyard.plugins.cuda.plugin import plugin
from kernelyard.plugins.native.build import artefact
from kernelyard.registry import registry
from kernelyard.registry.kernel import Kernel
from kernelyard.registry.lazy import load
from kernelyard.registry.op import Op, Point
from kernelyard.registry.spec import Workload

KERNELS = {kernel.op: kernel for kernel in plugin.kernels if kernel.op == "attention_decode"}
builds = pytest.mark.skipif(not probe.can_build(), reason=probe.can_build().reason)
SPACE = KERNELS["attention_decode"].space
each = pytest.mark.parametrize("kernel", KERNELS.values(), ids=list(KERNELS))


def op_of(kernel: Kernel) -> Op:
    return registry.current().op(kernel.op)


def workload(op: str, *dims: int, dtype: str = "bfloat16", layout: str = "contiguous", **statics: Any) -> Workload:
    return registry.current().op(op).workload(Point(dims, dtype, layout, tuple(statics.items())), "cuda")


@each
def test_the_authors_config_is_in_the_space_of_every_point(kernel: Kernel, agreement: ModuleType) -> None:
    assert agreement.outside_of_space(kernel) == []


@pytest.mark.parametrize(("batch", "capacity", "cluster"), [(1, 2048, 16), (1, 256, 16), (1, 64, 4), (16, 4096, 2), (64, 4096, 1)])
def test_a_cluster_makes_two_ctas_a_multiprocessor_and_none_is_without_tokens(batch: int, capacity: int, cluster: int) -> None:
    work = workload("attention_decode", batch, 32, 8, 1, capacity, 128, 0)
    config = KERNELS["attention_decode"].space.default_for(work)
    assert (config["cluster"], config["parts"]) == (cluster, 1)


@pytest.mark.parametrize(
    ("batch", "kv_heads", "capacity", "parts"), [(1, 8, 32768, 33), (1, 8, 4096, 33), (2, 8, 32768, 16), (1, 1, 32768, 66)]
)
def test_many_tokens_of_few_heads_are_parts_of_one_cta_two_a_multiprocessor(batch: int, kv_heads: int, capacity: int, parts: int) -> None:
    config = SPACE.default_for(workload("attention_decode", batch, 4 * kv_heads, kv_heads, 1, capacity, 128, 0))
    assert (config["cluster"], config["parts"]) == (1, parts)


@pytest.mark.parametrize(
    ("batch", "capacity", "block_size", "early"), [(1, 1024, 0, True), (1, 1024, 64, False), (1, 8192, 0, False), (16, 1024, 0, False)]
)
def test_first_tiles_are_asked_for_before_the_length_where_the_cache_is_short_and_told_by_no_table(
    batch: int, capacity: int, block_size: int, early: bool
) -> None:
    assert SPACE.default_for(workload("attention_decode", batch, 32, 8, 1, capacity, 128, block_size))["early"] is early


@pytest.mark.parametrize(("block_size", "early"), [(0, {False, True}), (64, {False})])
def test_the_author_hints_at_both_designs_and_at_early_tiles_where_no_table_tells_the_blocks(block_size: int, early: set[bool]) -> None:
    hints = SPACE.hints_for(workload("attention_decode", 1, 32, 8, 1, 4096, 128, block_size))
    assert {(hint["cluster"], hint["parts"]) for hint in hints} == {(16, 1), (16, 2), (4, 8), (1, 33)}
    assert {hint["early"] for hint in hints} == early


def test_parts_that_pass_two_waves_or_have_no_tokens_are_not_tried() -> None:
    few, short = (workload("attention_decode", batch, 32, 8, 1, capacity, 128, 0) for batch, capacity in ((16, 4096), (1, 256)))
    many = {**SPACE.default_for(few), "cluster": 1, "parts": 8}
    assert "waves" in SPACE.allows(many, few).reason
    assert "no token" in SPACE.allows({**many, "parts": 33}, short).reason


def machine_code(work: Workload, **choices: Any) -> str:
    """Of the author's config with these choices, by the cuobjdump that comes with Triton; the test is skipped where there is none."""
    found = find_spec("triton")
    tool = Path(str(found.origin)).parent / "backends/nvidia/bin/cuobjdump" if found else Path("/nonexistent")
    if not tool.exists():
        pytest.skip("no cuobjdump beside triton")
    kernel = KERNELS[work.op]
    library = artefact(load(kernel.entry)(work, {**kernel.space.default_for(work), **choices}), kernel.folder, kernel.name, recipe("9.0a"))
    return subprocess.run([str(tool), "-sass", str(library)], capture_output=True, text=True, check=True, timeout=60).stdout


@builds
@pytest.mark.timeout(300)
def test_a_paged_cache_is_copied_by_16_bytes_without_spills(home: Path) -> None:
    code = machine_code(workload("attention_decode", 16, 32, 8, 1, 4096, 128, 64))
    assert re.search(r"\bLDGSTS\.E\.BYPASS\.128\b", code)
    assert not re.search(r"\b(STL|LDL)\b", code)


@builds
@pytest.mark.timeout(300)
def test_what_parts_left_is_asked_for_before_any_of_it_is_used(home: Path) -> None:
    code = machine_code(workload("attention_decode", 1, 32, 8, 1, 32768, 128, 0), parts=33, early=True)
    merge = next(one for one in code.split("Function : ") if "merge" in one.partition("\n")[0])
    assert len(re.findall(r"\bLDG\.E\.128\b", merge[: merge.index("MUFU.EX2")])) == 7  # a fifth of the parts, rounded up
    assert not re.search(r"\b(STL|LDL)\b", code)


@pytest.mark.gpu
@builds
@pytest.mark.timeout(900)
@each
def test_keeps_the_contract_on_a_gpu(kernel: Kernel, agreement: ModuleType) -> None:
    assert agreement.faults(kernel, "correctness", "cuda")["faults"] == {}


SHARED: dict[str, dict[str, Any]] = {
    "single CTAs": {"cluster": 1, "parts": 33}, "clusters": {"cluster": 4, "parts": 2}, "early": {"parts": 1, "early": True},
    "early parts": {"cluster": 1, "parts": 16, "early": True},
}  # fmt: skip
CACHES = ((3, 8, 2, 1, 1000, 128, 0), (4, 6, 2, 2, 2000, 64, 0), (3, 16, 4, 3, 600, 128, 0), (3, 8, 2, 1, 960, 128, 64))
"""Of their sequences `short` makes one empty, one of a few tokens, and leaves the rest. None is of a capacity whose typical sequences are
all full: there the contract's tolerance is for rows that see that many keys, which a right kernel misses on five."""


def short(args: tuple[Any, ...], capacity: int) -> tuple[Any, ...]:
    """The same arguments with lengths of 0, 5 and the rest; what lies past a length is NaN."""
    q, k, v, lengths, table, scale = args
    lengths = lengths.clone()
    lengths[0], lengths[1], lengths[2:] = 0, 5, capacity
    if table is None:
        k, v = k.nan_to_num().clone(), v.nan_to_num().clone()
        for i, length in enumerate(lengths.tolist()):
            k[i, :, length:], v[i, :, length:] = torch.nan, torch.nan
    else:
        k, v, table = k.nan_to_num(), v.nan_to_num(), table.clamp(0, k.shape[0] - 1)
    return q, k, v, lengths, table, scale


@pytest.mark.gpu
@builds
@pytest.mark.timeout(900)
@pytest.mark.parametrize("dims", CACHES, ids=str)
@pytest.mark.parametrize("choices", SHARED.values(), ids=list(SHARED))
def test_parts_and_early_tiles_keep_the_contract_on_ragged_lengths(
    dims: tuple[int, ...], choices: dict[str, Any], agreement: ModuleType
) -> None:
    kernel, work = KERNELS["attention_decode"], workload("attention_decode", *dims)
    if dims[-1] and choices.get("early"):
        pytest.skip("a table comes with the lengths")
    args = short(op_of(kernel).inputs(work, torch.Generator("cuda").manual_seed(1)), dims[4])
    config = {**SPACE.default_for(op_of(kernel).workload_of(args)), **choices}
    assert agreement.fault(kernel, ("ragged", op_of(kernel), args), config) == ""


@pytest.mark.gpu
@builds
@pytest.mark.timeout(300)
@pytest.mark.parametrize("choices", SHARED.values(), ids=list(SHARED))
def test_a_captured_graph_follows_the_lengths_of_each_replay(choices: dict[str, Any]) -> None:
    kernel, op = KERNELS["attention_decode"], registry.current().op("attention_decode")
    work = workload("attention_decode", 2, 8, 2, 1, 2048, 128, 0)
    q, k, v, lengths, *rest = op.inputs(work, torch.Generator("cuda").manual_seed(1))
    args = (q, k.nan_to_num(), v.nan_to_num(), lengths, *rest)
    built = builder.build(op, kernel, work, {**SPACE.default_for(work), **choices})
    built.call(*args)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = [built.call(*args) for _ in range(10)]  # each may start before the last has ended
    for told in (2048, 0, 1, 777, 16):
        lengths.fill_(told)
        graph.replay()
        torch.cuda.synchronize()
        waited = built.call(*args)
        assert all(torch.equal(one, waited) for one in captured)
        assert bool((waited == 0).all()) == (told == 0)
