from __future__ import annotations

from typing import Any

import pytest
import torch

from kernelyard.contracts import plugin as contracts
from kernelyard.plugins.triton_jit.glu_tiles import glu_view
from kernelyard.plugins.triton_jit.pointwise import KERNELS
from kernelyard.registry.kernel import Kernel
from kernelyard.registry.lazy import load
from kernelyard.registry.machine import installed
from kernelyard.registry.matrix import ABSENT
from kernelyard.registry.op import Point
from kernelyard.registry.spec import Config, Workload
from tests.plugins.interpreting import interpreted_by

OPS = {op.name: op for op in contracts.ops}
NAMES = [f"{k.op}/{k.name}" for k in KERNELS]
PACKED = (("b", ABSENT),)
needs_triton = pytest.mark.skipif(not installed("triton"), reason="triton is not installed")
every_kernel = pytest.mark.parametrize("kernel", KERNELS, ids=NAMES)


def workload(op: str, dims: tuple[int, ...], dtype: str = "bfloat16", layout: str = "contiguous", statics: Any = ()) -> Workload:
    return OPS[op].workload(Point(dims, dtype, layout, statics), "cuda")


def named(op: str, name: str) -> Kernel:
    return next(k for k in KERNELS if k.op == op and k.name == name)


def compiled(kernel: Kernel, work: Workload, **config: int | str | bool) -> Any:
    from kernelyard.plugins.triton_jit.offline import compile_only

    return compile_only(OPS[kernel.op], kernel, work, {**kernel.space.default_for(work), **config})


# Right, through the interpreter ---------------------------------------------------------------------


@pytest.fixture(scope="session")
def interpreted() -> dict[str, Any]:
    """Faults of every kernel, from one process: Triton chooses its mode at import."""
    return interpreted_by("pointwise_agreement.py", *NAMES)


@needs_triton
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", NAMES)
def test_the_interpreter_finds_no_fault(name: str, interpreted: dict[str, Any]) -> None:
    assert interpreted[name]["faults"] == {}
    assert interpreted[name]["cases"] > 10


# Compiled for Hopper without a GPU ------------------------------------------------------------------

LARGE: dict[str, tuple[tuple[int, ...], ...]] = {
    "vector_add": ((1 << 24,), (1_000_003,)),
    "swiglu": ((8192, 14336), (1000, 4095)), "swiglu_backward": ((8192, 14336), (1000, 4095)),
    "rope": ((4096, 32, 128), (8192, 40, 128)),
}  # fmt: skip
ROWS = ((16384, 4096), (2048, 32768), (1000, 4095))


@needs_triton
@every_kernel
def test_default_configs_compile_for_hopper_without_spills_and_with_16_byte_accesses(kernel: Kernel) -> None:
    for dims in LARGE.get(kernel.op, ROWS):
        work = workload(kernel.op, dims)
        if not kernel.support.fits(work):
            continue
        built = compiled(kernel, work)
        alone = dims == (1000, 4095) and kernel.op.startswith("softmax") and kernel.name != "triton.shifted"
        assert built.local_bytes == 0, dims
        assert built.shared_bytes <= 227 * 1024
        assert built.store_bytes == (2 if alone else 16), dims


@needs_triton
def test_a_packed_row_of_32768_columns_leaves_room_for_a_second_program() -> None:
    kernel, registers = named("softmax", "triton.packed"), 65536
    built = compiled(kernel, workload("softmax", (2048, 32768)), num_warps=16)
    assert 2 * built.registers * 16 * 32 <= registers and built.local_bytes == 0
    assert 2 * compiled(named("softmax", "triton.row"), workload("softmax", (2048, 32768)), num_warps=16).registers * 16 * 32 > registers


@needs_triton
@pytest.mark.parametrize("op", ["softmax", "softmax_backward", "swiglu", "swiglu_backward", "vector_add"])
def test_tiles_of_a_walk_arrive_in_shared_memory_ahead_of_their_turn(op: str) -> None:
    kernel = named(op, "triton.persistent")
    work = workload(op, (1 << 24,) if op == "vector_add" else (16384, 4096))
    assert "cp.async" in compiled(kernel, work, num_stages=2).ptx
    assert "cp.async" not in compiled(kernel, work, num_stages=1).ptx


@needs_triton
@pytest.mark.parametrize("style", ["half", "interleaved"])
def test_heads_are_read_16_bytes_at_a_time_in_either_style(style: str) -> None:
    assert compiled(named("rope", "triton.tile"), workload("rope", (4096, 32, 128), statics=(("style", style),))).load_bytes == 16


@needs_triton
def test_an_overlapping_launch_waits_before_it_reads() -> None:
    kernel = named("vector_add", "triton.stream")
    ptx = compiled(kernel, workload("vector_add", (1 << 20,)), overlap=True).ptx
    assert 0 < ptx.index("griddepcontrol.wait") < ptx.index("ld.global")
    assert "griddepcontrol" not in compiled(kernel, workload("vector_add", (1 << 20,)), overlap=False).ptx


# 64-bit offsets -------------------------------------------------------------------------------------

PAST_32_BITS = {"vector_add": (2**31 + 7,), "swiglu": (2, 2**30 + 8), "swiglu_backward": (2, 2**30 + 8)}


@needs_triton
@pytest.mark.parametrize("kernel", [k for k in KERNELS if k.op in PAST_32_BITS], ids=lambda k: f"{k.op}/{k.name}")
def test_one_long_row_past_2_to_the_31_has_64_bit_offsets_and_a_shorter_one_has_not(kernel: Kernel) -> None:
    def wide(dims: tuple[int, ...]) -> Any:
        work = workload(kernel.op, dims)
        return load(kernel.entry)(work, kernel.space.default_for(work)).constants["WIDE"]

    assert wide(PAST_32_BITS[kernel.op])
    assert not wide((4096,) if kernel.op == "vector_add" else (4, 4096))
    assert compiled(kernel, workload(kernel.op, PAST_32_BITS[kernel.op])).store_bytes >= 2


# Declarations ---------------------------------------------------------------------------------------


@every_kernel
def test_the_default_and_the_hints_are_in_the_space_of_every_point_it_serves(kernel: Kernel) -> None:
    op = OPS[kernel.op]
    for device, matrix in (("cuda", "performance"), ("cuda", "correctness"), ("cpu", "correctness"), ("cuda", "held_out")):
        for point in op.matrix(matrix, "cuda").points:
            work = op.workload(point, device)
            if all(work.dim(name) <= most for name, most in kernel.support.most.items()):
                for config in kernel.space.hints_for(work):
                    assert kernel.space.allows(config, work), (work.label(), config)


def test_two_contiguous_factors_are_one_long_row_and_halves_are_rows() -> None:
    flat = glu_view(workload("swiglu", (1000, 4095)))
    assert (flat.rows, flat.cols, flat.unit) == (1, 1000 * 4095, 8)
    packed = glu_view(workload("swiglu", (1000, 4096), statics=PACKED))
    assert (packed.rows, packed.cols, packed.a_stride, packed.b_stride, packed.unit) == (1000, 4096, 8192, 8192, 16)
    strided = glu_view(workload("swiglu", (1000, 4096), layout="row_strided"))
    assert (strided.rows, strided.cols, strided.a_stride > 4096, strided.b_stride) == (1000, 4096, True, 4096)
    assert glu_view(workload("swiglu", (1, 4095), statics=PACKED)).a_stride == 2 * 4095


def test_rows_that_all_start_at_16_bytes_are_not_for_the_shifted_kernel() -> None:
    shifted = named("softmax", "triton.shifted").support
    served = shifted.fits(workload("softmax", (1000, 4095)))
    assert served
    assert "triton.row" in shifted.fits(workload("softmax", (1000, 4096))).reason


def test_more_buffers_than_shared_memory_holds_are_refused() -> None:
    kernel, work = named("softmax", "triton.persistent"), workload("softmax", (2048, 32768))
    config: Config = {**kernel.space.default_for(work), "num_warps": 32, "programs_per_sm": 1}
    assert kernel.space.allows({**config, "num_stages": 4}, work)
    assert "KiB" in kernel.space.allows({**config, "num_stages": 4, "programs_per_sm": 2}, work).reason


def test_a_tables_row_stride_is_read_off_it_at_each_call() -> None:
    work = workload("rope", (5, 3, 64))
    launch = load(named("rope", "triton.tile").entry)(work, named("rope", "triton.tile").space.default_for(work))
    x, tables = torch.randn(5, 3, 64), torch.randn(50, 2, 32)
    given = launch.arguments((x,), x, tables[:, 0], tables[:, 1].contiguous(), torch.zeros(5), "half", False)
    assert given[5:7] == (64, 32)


# On a GPU -------------------------------------------------------------------------------------------


@pytest.mark.gpu
@every_kernel
def test_keeps_the_contract_on_a_gpu(kernel: Kernel, agreement: Any) -> None:
    assert agreement.faults(kernel, "smoke", "cuda")["faults"] == {}
