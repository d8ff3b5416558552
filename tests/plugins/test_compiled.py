from __future__ import annotations

from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest
import torch

from kernelyard.contracts import ADD_RMSNORM_BACKWARD, RMSNORM, ROPE, SOFTMAX, VECTOR_ADD
from kernelyard.contracts import plugin as contracts
from kernelyard.errors import BuildFailed
from kernelyard.plugins.compiled import probe
from kernelyard.plugins.compiled.build import builder, own_code
from kernelyard.plugins.compiled.plugin import plugin
from kernelyard.registry.backend import Backend
from kernelyard.registry.kernel import Kernel, Support
from kernelyard.registry.lazy import load
from kernelyard.registry.op import Op, Point

SHAPES = {1: (1025,), 2: (7, 129), 3: (7, 3, 64)}
"""By number of dimensions."""
PRODUCTS = {
    "matmul": (2, 7, 9, 17), "linear_swiglu": (7, 9, 17), "rmsnorm_linear": (7, 9, 17),
    "rmsnorm_linear_swiglu": (7, 9, 17), "rope_attention_decode": (6, 4, 2, 40, 16),
    "attention": (2, 4, 2, 7, 9, 16), "attention_decode": (3, 4, 2, 2, 40, 16, 8),
}  # fmt: skip
compiles = pytest.mark.skipif(not plugin.backends[0].available("cpu"), reason=plugin.backends[0].available("cpu").reason)


def kernel(op: Op, name: str) -> Kernel:
    return next(k for k in plugin.kernels if k.op == op.name and k.name == name)


def kept(op: Op, device: str = "cpu") -> str:
    """The dtype to test: bfloat16, or float32 where what is compiled is only timed in bfloat16."""
    half = op.workload_of(case(op, "bfloat16", "offset")[2])
    return "bfloat16" if kernel(op, "compile.default").support.fits(replace(half, device=device)) else "float32"


def case(op: Op, dtype: str, layout: str, device: str = "cpu") -> tuple[str, Op, tuple[Any, ...]]:
    workload = op.workload(Point(PRODUCTS.get(op.name) or SHAPES[len(op.dims)], dtype, layout), device)
    return layout, op, op.inputs(workload, torch.Generator(device).manual_seed(0))


@compiles
@pytest.mark.parametrize("op", [VECTOR_ADD, SOFTMAX, RMSNORM, ADD_RMSNORM_BACKWARD, ROPE], ids=lambda op: op.name)
def test_keeps_the_contract(op: Op, agreement: ModuleType) -> None:
    assert agreement.fault(kernel(op, "compile.default"), case(op, "bfloat16", "offset")) == ""


@pytest.mark.parametrize("op", contracts.ops, ids=lambda op: op.name)
def test_every_entry_is_one_graph_and_keeps_the_contract(op: Op, agreement: ModuleType) -> None:
    """Without Inductor, which takes seconds for each."""
    _, _, args = case(op, kept(op), "offset")
    workload = op.workload_of(args)
    traced = torch.compile(own_code(load(kernel(op, "compile.default").entry)(workload, {})), fullgraph=True, backend="eager")
    before = tuple(arg.clone() if isinstance(arg, torch.Tensor) else arg for arg in args)
    assert agreement.difference(traced(*args), op, workload, before, args) == ""


def test_both_modes_serve_every_op() -> None:
    names = {"compile.default", "compile.max_autotune"}
    assert {(k.op, k.name) for k in plugin.kernels} == {(op.name, name) for op in contracts.ops for name in names}


@compiles
def test_softmax_keeps_dead_rows_zero_and_lets_nan_through(agreement: ModuleType) -> None:
    inf, nan = float("inf"), float("nan")
    args = (torch.tensor([[1.0, 2.0], [-inf, -inf], [nan, -inf], [inf, 0.0]]),)
    assert agreement.fault(kernel(SOFTMAX, "compile.default"), ("dead", SOFTMAX, args)) == ""


@compiles
def test_no_shape_falls_back_to_eager_however_many_were_compiled() -> None:
    """Dynamo stops recompiling one code object after its limit; every build here has its own."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    op = kernel(VECTOR_ADD, "compile.default")
    with torch._dynamo.config.patch(recompile_limit=1, fail_on_recompile_limit_hit=True):
        for n in (1, 2, 3):
            workload = VECTOR_ADD.workload(Point((n,), "float32"))
            assert builder.build(VECTOR_ADD, op, workload, {}).call(torch.ones(n), torch.ones(n)).tolist() == [2.0] * n


@compiles
@pytest.mark.parametrize("position", [9, -1])
def test_rope_refuses_a_position_out_of_range(position: int) -> None:
    _, _, (x, cos, sin, positions, *statics) = case(ROPE, "float32", "contiguous")
    built = builder.build(ROPE, kernel(ROPE, "compile.default"), ROPE.workload_of((x, cos, sin, positions, *statics)), {})
    with pytest.raises(RuntimeError, match="out of bounds"):
        built.call(x, cos[:9], sin[:9], torch.tensor([0, 1, 2, 3, 4, 5, position]), *statics)


def test_each_build_has_a_code_object_of_its_own() -> None:
    def double(x: int) -> int:
        return 2 * x

    first, second = own_code(double), own_code(double)
    assert first.__code__ is not second.__code__
    assert first(3) == second(3) == 6


def _unsupported(workload: object, config: object) -> object:
    def function(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a if a.sum().item() > 0 else b

    return function


def test_a_function_that_can_not_be_compiled_whole_is_a_failed_build() -> None:
    support = Support(("cpu",), ("float32",))
    broken = Kernel("compile.broken", "vector_add", "compile", "breaks the graph", f"{__name__}:_unsupported", support)
    with pytest.raises(BuildFailed, match=r"torch\.compile failed on vector_add"):
        builder.build(VECTOR_ADD, broken, VECTOR_ADD.workload(Point((4,), "float32")), {})


def test_without_a_compiler_it_is_unavailable_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe.shutil, "which", lambda name: None)
    backend: Backend = plugin.backends[0]
    assert "CXX" in backend.available("cpu").reason


@pytest.mark.gpu
@pytest.mark.parametrize("op", contracts.ops, ids=lambda op: op.name)
def test_keeps_the_contract_on_a_gpu(op: Op, agreement: ModuleType) -> None:
    found = case(op, kept(op, "cuda"), "offset", "cuda")
    serves = kernel(op, "compile.default").support.fits(op.workload_of(found[2]))
    if not serves:
        pytest.skip(serves.reason)
    assert agreement.fault(kernel(op, "compile.default"), found) == ""
