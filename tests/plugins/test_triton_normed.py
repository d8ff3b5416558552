"""The Triton kernels of a norm with linear layers behind it: right in the interpreter, what of them runs ahead of the wait, no spills."""

from __future__ import annotations

import re
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import pytest

from kernelyard.contracts import RMSNORM_LINEAR, RMSNORM_LINEAR_SWIGLU
from kernelyard.registry import registry
from kernelyard.registry.kernel import Kernel
from kernelyard.registry.matrix import GIVEN
from kernelyard.registry.op import Op, Point
from kernelyard.registry.spec import Workload
from tests.plugins.interpreting import interpreted_by

needs_triton = pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")
OPS = {op.name: op for op in (RMSNORM_LINEAR, RMSNORM_LINEAR_SWIGLU)}
KERNELS = {f"{k.op}/{k.name}": k for op in OPS for k in registry.current().kernels(op) if k.backend == "triton"}
EACH, BOTH = pytest.mark.parametrize("name", KERNELS), pytest.mark.parametrize("op", OPS.values(), ids=list(OPS))
SHARED = 227 * 1024


def kernel_of(op: Op, name: str) -> Kernel:
    return KERNELS[f"{op.name}/triton.{name}"]


def work(op: Op, rows: int, n: int, k: int, dtype: str = "bfloat16", **statics: Any) -> Workload:
    return op.workload(Point((rows, n, k), dtype, statics=tuple(statics.items())), "cuda")


def compiled(kernel: Kernel, workload: Workload, **chosen: Any) -> Any:
    from kernelyard.plugins.triton_jit.offline import compile_only

    config = {**kernel.space.default_for(workload), **chosen}
    assert kernel.space.allows(config, workload)
    return compile_only(OPS[kernel.op], kernel, workload, config)


@pytest.fixture(scope="session")
def interpreted() -> dict[str, Any]:
    return interpreted_by("normed_agreement.py")


@needs_triton
@pytest.mark.timeout(300)
@EACH
def test_the_interpreter_finds_no_fault_whether_k_is_one_chunk_or_several(name: str, interpreted: dict[str, Any]) -> None:
    assert interpreted[name]["faults"] == {} and interpreted[name]["compared"] >= 8


@EACH
def test_the_author_s_config_and_hints_are_in_the_space_of_every_point(name: str, agreement: ModuleType) -> None:
    kernel = KERNELS[name]
    assert agreement.outside_of_space(kernel) == []
    workload = work(OPS[kernel.op], 4, 8192, 2048)
    hints = kernel.space.hints_for(workload)
    assert len(hints) > 2 and all(kernel.space.allows(hint, workload) for hint in hints)


SERVED = [(1, True, False), (2, True, True), (4, True, True), (5, False, True), (17, False, False)]


@BOTH
@pytest.mark.parametrize(("rows", "alone", "few"), SERVED)
def test_up_to_four_rows_are_served_without_tensor_cores_and_2_to_16_with(op: Op, rows: int, alone: bool, few: bool) -> None:
    served = {name: bool(kernel_of(op, name).support.fits(work(op, rows, 64, 64))) for name in ("gemv", "skinny")}
    assert served == {"gemv": alone, "skinny": few}


@BOTH
def test_rows_without_columns_are_left_to_plain_torch(op: Op) -> None:
    assert not any(kernel_of(op, name).support.fits(work(op, 2, 64, 0)) for name in ("gemv", "skinny"))


POINTS = [
    pytest.param(kernel, op.workload(point, "cuda"), id=f"{kernel.op} {'x'.join(map(str, point.dims))}")
    for kernel in KERNELS.values() for op in (OPS[kernel.op],) for point in op.matrices["performance/cuda"]
    if kernel.support.fits(op.workload(point, "cuda"))
]  # fmt: skip


@needs_triton
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("kernel", "workload"), POINTS)
def test_the_author_s_config_compiles_for_hopper_without_spills(kernel: Kernel, workload: Workload) -> None:
    told = compiled(kernel, workload)
    assert told.local_bytes == 0 and told.shared_bytes <= SHARED
    asynchronous = "cp.async.cg.shared.global.L2::cache_hint" in told.ptx
    assert asynchronous if kernel.name == "triton.skinny" else told.load_bytes == 16


def before_the_wait(ptx: str) -> int:
    """Loads from global memory ahead of griddepcontrol.wait."""
    assert ptx.count("griddepcontrol.wait") == 1 and ptx.index("griddepcontrol.launch_dependents") < ptx.index("griddepcontrol.wait")
    return len(re.findall(r"\bld\.global", ptx[: ptx.index("griddepcontrol.wait")]))


@needs_triton
@pytest.mark.timeout(300)
@BOTH
def test_constant_weights_alone_are_asked_for_before_the_kernel_ahead_has_ended(op: Op) -> None:
    constant, plain = (compiled(kernel_of(op, "gemv"), work(op, 1, 8192, 2048, constant_weights=c)).ptx for c in (True, False))
    assert before_the_wait(plain) == 0
    ahead, in_all = before_the_wait(constant), len(re.findall(r"\bld\.global", constant))
    assert 0 < ahead < in_all, "x comes from the kernel ahead"
    first = constant[: constant.index("griddepcontrol.wait")]
    assert constant.count("evict_first.L2::cache_hint") == first.count("evict_first.L2::cache_hint"), "the whole weight"


@needs_triton
@pytest.mark.timeout(300)
def test_a_bias_is_a_constant_weight_too() -> None:
    kernel = kernel_of(RMSNORM_LINEAR, "gemv")
    with_bias, without = (
        compiled(kernel, work(RMSNORM_LINEAR, 1, 3072, 2048, constant_weights=True, **more)).ptx for more in ({"bias": GIVEN}, {})
    )
    assert before_the_wait(with_bias) == before_the_wait(without) + 1


@BOTH
def test_squares_are_not_left_to_the_end_where_the_factor_could_overflow(op: Op) -> None:
    kernel, workload = kernel_of(op, "skinny"), work(op, 8, 8192, 2048, "float16")
    default = kernel.space.default_for(workload)
    answer = kernel.space.allows({**default, "norm": "after"}, workload)
    assert default["norm"] == "first" and not answer and "largest number" in answer.reason


@pytest.mark.gpu
@pytest.mark.timeout(900)
@EACH
def test_keeps_the_contract_on_a_gpu(name: str, agreement: ModuleType) -> None:
    told = agreement.faults(KERNELS[name], "smoke", "cuda")
    assert told["faults"] == {} and told["cases"]
