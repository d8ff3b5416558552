"""The Gluon kernels: what they serve, the order of tiles, barriers and numbers on a machine of the tests' own, code for Hopper."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from itertools import pairwise
from types import ModuleType
from typing import Any

import pytest
import torch

from kernelyard.plugins.gluon_ws.plugin import plugin
from kernelyard.plugins.triton_jit.probe import probe
from kernelyard.registry import registry
from kernelyard.registry.kernel import Kernel
from kernelyard.registry.lazy import load
from kernelyard.registry.op import Op, Point
from kernelyard.registry.spec import Config, Workload

pytestmark = pytest.mark.skipif(not probe("cpu", "check"), reason=probe("cpu", "check").reason)
MATMUL, ATTENTION = plugin.kernels
each_kernel = pytest.mark.parametrize("kernel", plugin.kernels, ids=lambda kernel: kernel.op)


def op_of(kernel: Kernel) -> Op:
    return registry.current().op(kernel.op)


def workload(kernel: Kernel, shape: tuple[int, ...], layout: str = "contiguous", dtype: str = "bfloat16", **statics: Any) -> Workload:
    dims = (1, *shape) if kernel is MATMUL else shape
    return op_of(kernel).workload(Point(dims, dtype, layout, tuple(statics.items())), "cuda")


# What is supported ----------------------------------------------------------------------------------


@each_kernel
def test_the_authors_config_is_in_the_space_of_every_point(kernel: Kernel, agreement: ModuleType) -> None:
    assert agreement.outside_of_space(kernel) == []


@pytest.mark.parametrize(
    ("kernel", "shape", "layout", "dtype", "told"),
    [
        (MATMUL, (64, 64, 63), "contiguous", "bfloat16", "multiples of 16 bytes"),
        (MATMUL, (64, 64, 64), "a_transposed", "bfloat16", "rows must be contiguous"),
        (MATMUL, (64, 64, 64), "contiguous", "float32", "not float32"),
        (ATTENTION, (1, 2, 2, 64, 64, 96), "contiguous", "bfloat16", "head_dim is 96"),
        (ATTENTION, (1, 2, 2, 64, 64, 64), "offset", "bfloat16", "multiples of 16 bytes"),
    ],
    ids=["odd rows", "columns", "float32", "head_dim", "misaligned"],
)
def test_what_no_descriptor_takes_is_refused_with_a_reason(
    kernel: Kernel, shape: tuple[int, ...], layout: str, dtype: str, told: str
) -> None:
    answer = kernel.support.fits(workload(kernel, shape, layout, dtype))
    assert not answer
    assert told in answer.reason


# The order of tiles ---------------------------------------------------------------------------------


def test_every_tile_is_planned_once_and_programs_are_equally_long() -> None:
    from kernelyard.plugins.gluon_ws.order import blocks_seen, planned

    work = workload(ATTENTION, (2, 8, 2, 4096, 4096, 128), causal=True)
    order, starts = planned(work, 128, 128, 132, 16 << 20)
    assert sorted(order) == list(range(2 * 8 * 32))
    assert (starts[0], starts[-1], len(starts)) == (0, len(order), 133)
    costs = [sum(blocks_seen(order[i] % 32 * 128 + 128, 4096, 128, 0) for i in range(a, b)) for a, b in pairwise(starts)]
    assert max(costs) <= 1.35 * sum(costs) / len(costs)


def test_heads_are_worked_on_in_groups_that_fit_in_l2() -> None:
    from kernelyard.plugins.gluon_ws.order import planned

    work = workload(ATTENTION, (1, 8, 8, 4096, 4096, 128), causal=True)
    order, _ = planned(work, 128, 128, 1, 4 << 20)
    assert [tile // 32 for tile in order[:64]] == [0, 1] * 32
    assert [tile % 32 for tile in order[:4]] == [31, 31, 30, 30]


# A caller's own result --------------------------------------------------------------------------------


@each_kernel
def test_a_result_at_no_multiple_of_16_bytes_is_written_elsewhere_and_copied(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    from kernelyard.plugins.gluon_ws.build import through_handle

    work = workload(kernel, (64, 64, 64) if kernel is MATMUL else (1, 2, 2, 64, 64, 64))
    launch = load(kernel.entry)(work, kernel.space.default_for(work))
    op = op_of(kernel)
    args = op.inputs(replace(work, device="cpu"), _generator())
    given = tuple(torch.zeros(out.numel() + 1, dtype=out.dtype)[1:].view(out.shape) for out in op.empty(*args))
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    seen: list[int] = []

    def run(*values: Any) -> None:
        for value in values:
            if isinstance(getattr(value, "base", None), torch.Tensor):
                seen.append(value.base.data_ptr() % 16)
                if value.base.shape == given[0].shape:
                    value.base.fill_(3.0)

    through_handle(launch, {launch.grid: run})(given, *args)
    assert len(seen) > 2 and not any(seen), "a descriptor is of an address that it can have"
    assert given[0].eq(3.0).all()


# Barriers and numbers, on the tests' machine --------------------------------------------------------


def agrees(kernel: Kernel, work: Workload, config: Config, monkeypatch: pytest.MonkeyPatch, **given: Any) -> None:
    """Two programs share the tiles, so that each has several and its barriers turn over."""
    from kernelyard.plugins.gluon_ws import attention, matmul
    from tests.plugins import gluon_machine

    module = {"matmul": matmul, "attention": attention}[kernel.op]
    assert kernel.support.fits(work)
    assert kernel.space.allows(config, work)
    monkeypatch.setattr(module, "sm_count", lambda work: 2)
    op = op_of(kernel)
    names = [argument.name for argument in op.arguments]
    args = [given.get(name, value) for name, value in zip(names, op.inputs(replace(work, device="cpu"), _generator()), strict=True)]
    outputs = op.empty(*args)
    for out in outputs:
        out.fill_(float("nan"))
    gluon_machine.run(module, module.specialized(work, config), outputs, tuple(args))
    expected = op.reference(*(a.double() if isinstance(a, torch.Tensor) else a for a in args))
    tolerance = op.tolerance(work)
    for out, right in zip(outputs, expected if op.returns > 1 else (expected,), strict=True):
        torch.testing.assert_close(out.double(), right.double(), rtol=tolerance.relative, atol=tolerance.absolute)


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@pytest.mark.parametrize("stages", [3, 4])
@pytest.mark.parametrize("layout", ["contiguous", "linear"])
def test_products_of_any_size_are_right_and_no_part_waits_for_ever(layout: str, stages: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for shape in ((1, 8, 8), (300, 520, 200), (129, 257 if layout == "linear" else 264, 328)):
        agrees(MATMUL, workload(MATMUL, shape, layout), {"block_n": 128, "stages": stages}, monkeypatch)


@pytest.mark.parametrize("activation", ["relu", "gelu", "gelu_tanh", "silu"])
def test_what_follows_a_product_is_in_its_epilogue(activation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for n in (136, 131):
        work = workload(MATMUL, (70, n, 72), "linear", "float16", activation=activation, bias="given", residual="given")
        agrees(MATMUL, work, {"block_n": 256, "stages": 3}, monkeypatch)


HEADS = [
    (1, 4, 2, 200, 333, 64), (2, 2, 1, 300, 100, 64), (1, 2, 2, 400, 300, 64),
    (1, 2, 2, 1, 700, 64), (1, 5, 1, 65, 129, 128), (1, 2, 1, 3, 0, 64),
]  # fmt: skip
"""Among them rows that see no key, or none in the first two blocks, and no keys at all."""
FORMS = [(2, 2, False, False), (2, 2, True, True), (3, 3, False, False)]


@pytest.mark.parametrize(("consumers", "stages", "turns", "held"), FORMS, ids=["two", "in turn", "three"])
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_attention_of_any_lengths_is_right_and_no_part_waits_for_ever(
    causal: bool, consumers: int, stages: int, turns: bool, held: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = {"consumers": consumers, "stages": stages, "taking_turns": turns, "queries_held": held, "group_mb": 16}
    for shape in HEADS:
        if consumers == 3 and shape[-1] == 128:
            continue
        agrees(ATTENTION, workload(ATTENTION, shape, causal=causal, return_lse=True), config, monkeypatch)


@pytest.mark.parametrize(("scale", "held"), [(-0.2, False), (-0.2, True), (0.0, False)])
def test_a_scale_may_be_negative_or_nothing(scale: float, held: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    config = {"consumers": 2, "stages": 2, "taking_turns": True, "queries_held": held, "group_mb": 16}
    agrees(ATTENTION, workload(ATTENTION, (1, 2, 2, 150, 300, 64), causal=True, return_lse=True), config, monkeypatch, scale=scale)


def test_heads_may_lie_inside_of_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    config = {"consumers": 2, "stages": 2, "taking_turns": False, "queries_held": False, "group_mb": 16}
    agrees(ATTENTION, workload(ATTENTION, (2, 4, 2, 70, 150, 64), "bshd", "float16", causal=True), config, monkeypatch)


# Code for Hopper ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kernel", "shape", "statics", "kept_bytes"),
    # With queries held Triton 3.9 leaves two words of a tile in local memory, read once a tile outside of the loops over keys; 3.6 none.
    [(MATMUL, (4096, 4096, 4096), {}, 0), (ATTENTION, (1, 32, 8, 4096, 4096, 128), {"causal": True}, 8)],
    ids=["matmul", "attention"],
)
def test_the_authors_config_compiles_for_hopper_without_spills_in_its_loops(
    kernel: Kernel, shape: tuple[int, ...], statics: dict[str, Any], kept_bytes: int
) -> None:
    from kernelyard.plugins.gluon_ws.build import builder

    work = workload(kernel, shape, "linear" if kernel is MATMUL else "contiguous", **statics)
    told = builder.compile_for(op_of(kernel), kernel, work, kernel.space.default_for(work), "sm_90")
    assert told["local_bytes"] <= kept_bytes
    assert 128 * 1024 < told["shared_bytes"] <= 227 * 1024
