"""The Triton kernels for products of 2 to 16 rows: right in every way of copying, what tensor cores and copies they are compiled to."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import pytest

from kernelyard.contracts import LINEAR_SWIGLU, MATMUL
from kernelyard.registry import registry
from kernelyard.registry.kernel import Kernel
from kernelyard.registry.op import Op, Point
from kernelyard.registry.spec import Config, TensorSpec, Workload
from tests.plugins.interpreting import interpreted_by

needs_triton = pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")
BOTH = pytest.mark.parametrize("op", [MATMUL, LINEAR_SWIGLU], ids=lambda op: op.name)
SHARED = 227 * 1024


def kernel_of(op: Op) -> Kernel:
    return next(kernel for kernel in registry.current().kernels(op.name) if kernel.name == "triton.skinny")


def work(op: Op, rows: int, n: int, k: int, dtype: str = "bfloat16") -> Workload:
    point = Point((1, rows, n, k), dtype, "linear") if op is MATMUL else Point((rows, n, k), dtype)
    return op.workload(point, "cuda")


def compiled(op: Op, workload: Workload, **chosen: Any) -> Any:
    from kernelyard.plugins.triton_jit.offline import compile_only

    kernel = kernel_of(op)
    config: Config = {**kernel.space.default_for(workload), **chosen}
    assert kernel.space.allows(config, workload)
    return compile_only(op, kernel, workload, config)


@pytest.fixture(scope="session")
def interpreted() -> dict[str, Any]:
    return interpreted_by("skinny_agreement.py")


@needs_triton
@pytest.mark.timeout(300)
@BOTH
def test_every_way_of_copying_and_every_height_of_a_tile_keeps_the_contract(op: Op, interpreted: dict[str, Any]) -> None:
    told = interpreted[f"{op.name}/triton.skinny"]
    assert told["faults"] == {} and all(count >= 8 for count in told["compared"].values())


@BOTH
@pytest.mark.parametrize(("rows", "served"), [(1, False), (2, True), (16, True), (17, False)])
def test_two_to_sixteen_rows_of_halves_are_served(op: Op, rows: int, served: bool) -> None:
    support = kernel_of(op).support
    assert bool(support.fits(work(op, rows, 64, 64))) is served
    assert not support.fits(work(op, rows, 64, 64, "float32"))


def test_leading_dimensions_without_one_stride_are_refused() -> None:
    plain = work(LINEAR_SWIGLU, 8, 64, 64)
    apart = TensorSpec((2, 4, 64), "bfloat16", (1024, 64, 1))
    answer = kernel_of(LINEAR_SWIGLU).support.fits(replace(plain, tensors=(("x", apart), ("w", plain["w"]))))
    assert not answer and "one stride between rows" in answer.reason


@BOTH
def test_a_descriptor_is_for_rows_that_start_at_multiples_of_16_bytes(op: Op) -> None:
    space = kernel_of(op).space
    for k, allowed in ((4096, True), (4095, False)):
        workload = work(op, 16, 14336, k)
        config = {**space.default_for(workload), "num_warps": 4, "copy": "descriptor"}
        assert bool(space.allows(config, workload)) is allowed


@BOTH
def test_the_hints_are_in_the_space_and_differ(op: Op) -> None:
    workload, space = work(op, 16, 14336, 4096), kernel_of(op).space
    hints = space.hints_for(workload)
    assert len({tuple(sorted(hint.items())) for hint in hints}) == len(hints) == 4
    assert all(space.allows(hint, workload) for hint in hints)


@BOTH
@pytest.mark.parametrize("rows", [2, 16])
def test_the_default_fills_what_two_programs_a_multiprocessor_have(op: Op, rows: int) -> None:
    from kernelyard.plugins.triton_jit.products_skinny import stage_bytes

    workload = work(op, rows, 14336, 4096)
    config = kernel_of(op).space.default_for(workload)
    assert 40_000 <= stage_bytes(config, workload) * int(config["num_stages"]) <= SHARED // 2


@needs_triton
@pytest.mark.timeout(300)
@BOTH
@pytest.mark.parametrize("rows", [8, 16])
def test_64_rows_of_the_weight_are_one_wgmma_without_spills(op: Op, rows: int) -> None:
    told = compiled(op, work(op, rows, 14336, 4096))
    assert told.local_bytes == 0 and told.shared_bytes <= SHARED // 2
    assert f"m64n{rows}k16" in told.ptx and "cp.async.cg.shared.global.L2::cache_hint" in told.ptx


@needs_triton
@pytest.mark.timeout(300)
@BOTH
def test_by_descriptor_one_instruction_copies_a_tile(op: Op) -> None:
    told = compiled(op, work(op, 16, 14336, 4096), copy="descriptor", num_warps=4)
    assert told.local_bytes == 0 and told.shared_bytes <= SHARED // 2
    assert "m64n16k16" in told.ptx and "cp.async.bulk.tensor.2d" in told.ptx


@needs_triton
@pytest.mark.timeout(300)
@BOTH
def test_rows_that_start_anywhere_compile_without_spills(op: Op) -> None:
    assert compiled(op, work(op, 16, 14336, 4095)).local_bytes == 0
