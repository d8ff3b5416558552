"""The Triton kernels of products and attention: right through the interpreter, compiled for Hopper without spills, and right on a GPU."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec
from types import FunctionType, ModuleType, SimpleNamespace
from typing import Any

import pytest

from kernelyard.contracts import ATTENTION, ATTENTION_DECODE, LINEAR_SWIGLU, MATMUL
from kernelyard.registry import registry
from kernelyard.registry.kernel import Kernel
from kernelyard.registry.matrix import GIVEN
from kernelyard.registry.op import Point
from kernelyard.registry.spec import Config, Workload
from tests.plugins.interpreting import interpreted_by

OPS = {op.name: op for op in (MATMUL, LINEAR_SWIGLU, ATTENTION, ATTENTION_DECODE)}
ON_GPU = tuple(kernel for op in OPS for kernel in registry.current().kernels(op) if kernel.backend in ("triton", "cuda", "gluon"))
KERNELS = tuple(kernel for kernel in ON_GPU if kernel.backend == "triton")
SPARSE = {
    "attention/triton.twoloop": 6, "attention_decode/triton.split": 5, "matmul/triton.split": 4, "matmul/triton.padded": 1,
    "matmul/triton.gemv": 2, "matmul/triton.persistent": 1, "matmul/triton.repacked": 1,
    "matmul/triton.skinny": 1,
}  # fmt: skip
"""Every so many points of the smoke matrix: the interpreter takes a second for many of them. Of others every third."""

needs_triton = pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")
each = pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: f"{kernel.op}/{kernel.name}")
SHARED = 227 * 1024


def key(kernel: Kernel) -> str:
    return f"{kernel.op}/{kernel.name}"


@pytest.fixture(scope="session")
def interpreted() -> dict[str, Any]:
    """Faults by kernel, from one process: Triton chooses its mode at import."""
    names = [f"{key(kernel)}:{SPARSE[key(kernel)]}" if key(kernel) in SPARSE else key(kernel) for kernel in KERNELS]
    return interpreted_by("agreement.py", "cpu", "smoke", "3", *names)


@needs_triton
@pytest.mark.timeout(300)
@each
def test_the_interpreter_finds_no_fault(kernel: Kernel, interpreted: dict[str, Any]) -> None:
    assert interpreted[key(kernel)]["faults"] == {}
    assert interpreted[key(kernel)]["cases"] > 2


@each
def test_the_author_s_config_is_in_the_space_of_every_point(kernel: Kernel, agreement: ModuleType) -> None:
    assert agreement.outside_of_space(kernel) == []


LARGE = {
    "matmul/triton.tile": Point((1, 4096, 4096, 4096), "bfloat16"),
    "matmul/triton.padded": Point((1, 4097, 4095, 4097), "bfloat16"),
    "matmul/triton.gemv": Point((1, 1, 14336, 4096), "bfloat16", "linear"),
    "linear_swiglu/triton.gemv": Point((1, 14336, 4096), "bfloat16"),
    "attention/triton.twoloop": Point((2, 32, 8, 4096, 4096, 128), "bfloat16", statics=(("causal", True),)),
}


@needs_triton
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", LARGE)
def test_the_author_s_config_compiles_for_hopper_without_spills(name: str) -> None:
    from kernelyard.plugins.triton_jit.offline import compile_only

    kernel = next(kernel for kernel in KERNELS if key(kernel) == name)
    work = OPS[kernel.op].workload(LARGE[name], "cuda")
    told = compile_only(OPS[kernel.op], kernel, work, kernel.space.default_for(work))
    assert told.local_bytes == 0 and told.shared_bytes <= SHARED
    if "gemv" in name:
        assert told.load_bytes == 16
    else:
        assert "wgmma.mma_async" in told.ptx and "cp.async.cg" in told.ptx


def product(name: str) -> Kernel:
    return next(kernel for kernel in KERNELS if key(kernel) == f"matmul/triton.{name}")


def compiled(kernel: Kernel, work: Workload, config: Config) -> tuple[int, int]:
    """Bytes a thread spills, and of shared memory."""
    from kernelyard.plugins.triton_jit.offline import compile_only

    told = compile_only(MATMUL, kernel, work, config)
    return told.local_bytes, told.shared_bytes


def multiplied(dims: tuple[int, int, int], dtype: str = "bfloat16", layout: str = "contiguous", **statics: Any) -> Workload:
    return MATMUL.workload(Point((1, *dims), dtype, layout, tuple(statics.items())), "cuda")


ENDS = {"activation": "gelu", "bias": GIVEN, "residual": GIVEN}
RAGGED = [
    ("split", multiplied((513, 513, 4097))),
    ("split", multiplied((1001, 1001, 1003), "float32", "linear")),
    ("repacked", multiplied((4097, 4095, 4097))),
]


@needs_triton
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("name", "work"), RAGGED, ids=[f"{name} {work.label()}" for name, work in RAGGED])
def test_the_authors_config_compiles_without_spills_where_rows_start_anywhere(name: str, work: Workload) -> None:
    kernel = product(name)
    spilled, shared = compiled(kernel, work, kernel.space.default_for(work))
    assert spilled == 0 and shared <= SHARED


SPILLING = [
    (multiplied((4096, 4096, 4096), activation="gelu", bias=GIVEN), "whole", "halves"),
    (multiplied((4096, 4096, 4096), **ENDS), "whole", "direct"),
    (multiplied((4096, 4095, 4096), layout="linear"), "direct", "quarters"),
]


@pytest.mark.parametrize(("work", "spills", "keeps"), SPILLING, ids=[work.label() for work, *_ in SPILLING])
def test_stores_that_spill_are_refused_and_are_not_the_authors(work: Workload, spills: str, keeps: str) -> None:
    space = product("persistent").space
    chosen = {**space.default_for(work), "num_stages": 2}
    refused = space.allows({**chosen, "store": spills}, work)
    assert chosen["store"] == keeps and space.allows(chosen, work)
    assert not refused and "would spill" in refused.reason


@needs_triton
@pytest.mark.timeout(300)
def test_what_is_refused_as_spilling_does_spill() -> None:
    kernel, (work, spills, keeps) = product("persistent"), SPILLING[2]
    chosen = kernel.space.default_for(work)
    assert compiled(kernel, work, {**chosen, "store": spills})[0] > 0 == compiled(kernel, work, {**chosen, "store": keeps})[0]


def test_a_residual_takes_shared_memory_beside_a_result_that_goes_there() -> None:
    plain, added = multiplied((4096, 4096, 4096)), multiplied((4096, 4096, 4096), residual=GIVEN)
    space = product("persistent").space
    config = {**space.default_for(plain), "block_k": 128, "num_stages": 2}
    assert space.allows({**config, "store": "halves"}, plain) and space.allows({**config, "store": "direct"}, added)
    answer = space.allows({**config, "store": "halves"}, added)
    assert not answer and "shared memory" in answer.reason


@pytest.mark.parametrize("dims", [(65, 1, 16), (127, 1, 257), (128, 1, 64)], ids=str)
def test_a_result_of_one_column_is_not_written_by_descriptor(dims: tuple[int, int, int]) -> None:
    work, space = multiplied(dims), product("persistent").space
    chosen = space.default_for(work)
    assert chosen["store"] == "quarters" and space.allows(chosen, work)
    assert not any(space.allows({**chosen, "store": store}, work) for store in ("whole", "halves"))


# The order of attention's programs, and how far its rows may be apart ---------------------------------


def order(heads: int, blocks: int, at_once: int) -> list[tuple[int, int]]:
    """Head and block of every program, by the kernel's own function."""
    from kernelyard.plugins.triton_jit.attention import turn

    code = getattr(turn, "fn", turn).__code__
    place = FunctionType(code, {"tl": SimpleNamespace(minimum=min)})
    return [place(number, heads, blocks, at_once) for number in range(heads * blocks)]


@needs_triton
@pytest.mark.parametrize(("heads", "blocks", "at_once"), [(12, 5, 4), (10, 3, 4), (3, 4, 3), (7, 1, 2), (1, 6, 1)])
def test_every_block_of_every_head_has_one_program_longest_first_in_a_group(heads: int, blocks: int, at_once: int) -> None:
    told = order(heads, blocks, at_once)
    assert sorted(told) == [(head, block) for head in range(heads) for block in range(blocks)]
    keys = [(head // at_once, -block, head) for head, block in told]
    assert keys == sorted(keys)


ATTENDED = next(kernel for kernel in KERNELS if key(kernel) == "attention/triton.twoloop")


def attended(*dims: int, **statics: Any) -> Workload:
    return ATTENTION.workload(Point(dims, "bfloat16", statics=tuple(statics.items())), "cuda")


@needs_triton
def test_a_group_of_heads_has_keys_and_values_of_so_many_megabytes_and_is_not_split_within_sharers() -> None:
    from kernelyard.plugins.triton_jit.attention import heads_at_once

    mib = 1 << 20
    assert heads_at_once(attended(2, 32, 8, 4096, 4096, 128), 16 * mib) == 32, "8 of 2 MiB, 4 heads share each"
    assert heads_at_once(attended(2, 32, 32, 4096, 4096, 128), 16 * mib) == 8
    assert heads_at_once(attended(1, 32, 8, 65536, 65536, 128), 16 * mib) == 4, "one of 32 MiB"
    assert heads_at_once(attended(1, 4, 2, 8, 0, 64), 16 * mib) >= 4


def test_sizes_of_groups_that_give_one_order_are_tuned_once() -> None:
    def sizes(work: Workload) -> list[int]:
        chosen = ATTENDED.space.default_for(work)
        return [n for n in (8, 16, 32) if ATTENDED.space.allows({**chosen, "group_mb": n}, work)]

    assert sizes(attended(1, 32, 8, 1024, 1024, 128)) == [8], "4 MiB together"
    assert sizes(attended(4, 32, 8, 1024, 1024, 128)) == [8, 16], "16 MiB"
    assert sizes(attended(2, 32, 8, 4096, 4096, 128)) == [8, 16, 32]


@needs_triton
@pytest.mark.parametrize(("apart", "far"), [((2**31 - 257) // 64, False), ((2**31 - 257) // 64 + 1, True)])
def test_offsets_in_a_block_of_keys_have_64_bits_exactly_where_32_could_overflow(apart: int, far: bool) -> None:
    from kernelyard.plugins.triton_jit.attention import twoloop

    work = attended(1, 1, 1, 64, 64, 64)
    keys = replace(work["k"], strides=(64 * apart, 64 * apart, apart, 1))
    work = replace(work, tensors=tuple((name, keys if name == "v" else spec) for name, spec in work.tensors))
    assert ATTENDED.support.fits(work)
    assert twoloop(work, {**ATTENDED.space.default_for(work), "block_kv": 64}).constants["FAR"] is far


def test_more_programs_than_32_bits_count_are_refused() -> None:
    answer = ATTENDED.support.fits(attended(2**10, 2**7, 1, 2**18 + 1, 16, 16))
    assert not answer and "2147614720 blocks of 16 queries" in answer.reason


@pytest.mark.gpu
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kernel", ON_GPU, ids=key)
def test_keeps_the_contract_on_a_gpu(kernel: Kernel, agreement: ModuleType) -> None:
    told = agreement.faults(kernel, "smoke", "cuda")
    assert told["faults"] == {} and told["cases"]
