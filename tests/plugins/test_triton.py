from __future__ import annotations

import importlib
from dataclasses import replace
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from kernelyard.contracts import RMSNORM, SOFTMAX, VECTOR_ADD
from kernelyard.contracts import plugin as contracts
from kernelyard.errors import BuildFailed
from kernelyard.plugins.triton_jit import norms, probe
from kernelyard.plugins.triton_jit.kernels import KERNELS
from kernelyard.plugins.triton_jit.launch import row_view
from kernelyard.plugins.triton_jit.plugin import plugin
from kernelyard.registry.backend import TritonLaunch
from kernelyard.registry.kernel import Kernel
from kernelyard.registry.lazy import load
from kernelyard.registry.machine import installed
from kernelyard.registry.op import Op, Point
from kernelyard.registry.spec import YES, DeclarationError, TensorSpec, Workload, no
from tests.plugins.interpreting import interpreted_by

OPS = {op.name: op for op in contracts.ops}
NAMES = [f"{k.op}/{k.name}" for k in norms.KERNELS]
LARGE = {"rows": [(16384, 4096), (2048, 32768), (1000, 4095)]}
needs_triton = pytest.mark.skipif(not installed("triton"), reason="triton is not installed")
every_kernel = pytest.mark.parametrize("kernel", norms.KERNELS, ids=NAMES)


def workload(op: Op, dims: tuple[int, ...], dtype: str = "bfloat16", layout: str = "contiguous") -> Workload:
    return op.workload(Point(dims, dtype, layout), "cuda")


def named(op: str, name: str) -> Kernel:
    return next(k for k in KERNELS if k.op == op and k.name == name)


# Right, through the interpreter ---------------------------------------------------------------------


@pytest.fixture(scope="session")
def interpreted() -> dict[str, Any]:
    """Faults of every kernel over the smoke matrix and special values, from one process: Triton chooses its mode at import."""
    return interpreted_by("agreement.py", "cpu", "smoke", "1", *NAMES)


@needs_triton
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", NAMES)
def test_the_interpreter_finds_no_fault(name: str, interpreted: dict[str, Any]) -> None:
    assert interpreted[name]["faults"] == {}
    assert interpreted[name]["cases"] > 10


@needs_triton
def test_a_process_that_compiles_can_not_interpret_and_says_what_to_do(agreement: ModuleType) -> None:
    import triton.language  # noqa: F401  # compiled, as nothing asked for the interpreter in this process

    with pytest.raises(BuildFailed, match="TRITON_INTERPRET=1"):
        agreement.fault(named("vector_add", "triton.stream"), ("sum", VECTOR_ADD, (torch.ones(4), torch.ones(4))))


@needs_triton
def test_the_interpreter_rounds_to_bfloat16_as_torch_does() -> None:
    from kernelyard.plugins.triton_jit.interpreter import to_bfloat16, to_float32

    bits = torch.randint(-(2**31), 2**31 - 1, (20000,), generator=torch.Generator().manual_seed(0), dtype=torch.int64).to(torch.int32)
    special = torch.tensor([0.0, -0.0, 1.00390625, 1.01171875, 3.4e38, float("inf"), -float("inf"), float("nan"), 1e-40])
    values = torch.cat([bits.view(torch.float32), special])
    mine = torch.from_numpy(to_float32(to_bfloat16(values.numpy())))
    assert torch.equal(mine.nan_to_num(7.0, 8.0, 9.0), values.to(torch.bfloat16).to(torch.float32).nan_to_num(7.0, 8.0, 9.0))


# Compiled for Hopper without a GPU ------------------------------------------------------------------


@needs_triton
@every_kernel
def test_default_configs_compile_for_hopper_without_spills_and_with_16_byte_accesses(kernel: Kernel) -> None:
    from kernelyard.plugins.triton_jit.offline import compile_only

    op = OPS[kernel.op]
    for dims in LARGE.get(op.name, LARGE["rows"]):
        work = workload(op, dims)
        if not kernel.support.fits(work):
            continue
        built = compile_only(op, kernel, work, kernel.space.default_for(work))
        assert built.local_bytes == 0, dims
        assert built.shared_bytes <= 227 * 1024
        alone = "_backward" not in op.name and kernel.name != "triton.shifted"  # a gradient's workspace is aligned whatever the width
        assert built.store_bytes == (2 if dims == (1000, 4095) and alone else 16), dims


@needs_triton
@pytest.mark.parametrize("op", ["rmsnorm", "add_rmsnorm"])
def test_rows_that_start_anywhere_are_copied_16_bytes_at_a_time_to_all_their_registers(op: str) -> None:
    from kernelyard.plugins.triton_jit.offline import compile_only

    work = workload(OPS[op], (1000, 4095))
    kernel, whole = named(op, "triton.shifted"), named(op, "triton.row")
    built, other = (compile_only(OPS[op], one, work, one.space.default_for(work)) for one in (kernel, whole))
    assert (built.load_bytes, built.store_bytes) == (16, 16) and (other.load_bytes, other.store_bytes) == (2, 2)


@needs_triton
def test_warps_that_load_the_same_elements_wait_for_each_other_before_one_of_them_overwrites_these() -> None:
    from kernelyard.plugins.triton_jit.offline import compile_only

    op, kernel = OPS["add_rmsnorm"], named("add_rmsnorm", "triton.shifted")
    work = workload(op, (1000, 3), "float32")
    ptx = compile_only(op, kernel, work, {**kernel.space.default_for(work), "num_warps": 4}).ptx
    read_again, first_stored = ptx[: ptx.index("st.global")].rpartition("ld.global")[2], ptx.index("st.global")
    assert "bar.sync" in read_again and "ld.global" not in ptx[first_stored:]


def test_a_sum_s_rows_that_start_anywhere_are_served_where_x_and_residual_both_lie_without_gaps() -> None:
    op, fits = OPS["add_rmsnorm"], named("add_rmsnorm", "triton.shifted").support.fits
    x, residual = torch.empty(8, 4095), torch.empty(8, 4100)[:, :4095]
    assert "triton.row" in fits(workload(op, (8, 4096))).reason
    for pair, name in (((x, residual), "residual"), ((residual, x), "x"), ((x, torch.empty(8 * 4095 + 1)[1:].view(8, 4095)), "residual")):
        work = replace(op.workload_of((*pair, None, 1e-6, 0.0, "fp32")), device="cuda")
        assert f"{name} must be contiguous and start at a multiple of 16 bytes" in fits(work).reason


@needs_triton
@pytest.mark.parametrize("op", ["rmsnorm_backward", "add_rmsnorm_backward"])
def test_a_gradients_last_launch_waits_for_those_ahead_and_they_let_it_come(op: str) -> None:
    from kernelyard.plugins.triton_jit.offline import compile_only

    kernel, work = named(op, "triton.split"), workload(OPS[op], (2048, 32768))
    asked = kernel.space.default_for(work)
    for overlap in (True, False):
        ptx = compile_only(OPS[op], kernel, work, {**asked, "overlap": overlap}).ptx
        assert ptx.count("griddepcontrol.wait") == (2 if overlap else 0)


@needs_triton
def test_a_width_of_1000_is_read_16_bytes_at_a_time_and_a_misaligned_one_is_not() -> None:
    from kernelyard.plugins.triton_jit.offline import compile_only

    kernel = named("rmsnorm", "triton.row")
    for layout, size in (("contiguous", 16), ("row_strided", 16), ("offset", 2)):
        work = workload(RMSNORM, (4096, 1000), layout=layout)
        assert compile_only(RMSNORM, kernel, work, kernel.space.default_for(work)).load_bytes >= size
    assert "ld.global.v4" not in compile_only(RMSNORM, kernel, misaligned(work), kernel.space.default_for(work)).ptx


def misaligned(work: Workload) -> Workload:
    moved = {name: TensorSpec(spec.shape, spec.dtype, spec.strides, aligned=False) for name, spec in work.tensors if spec is not None}
    return Workload(work.op, tuple(moved.items()), work.statics, work.device, work.dims)


@needs_triton
def test_a_config_that_can_not_be_compiled_is_a_failed_build() -> None:
    from kernelyard.plugins.triton_jit.offline import compile_only

    kernel = named("rmsnorm", "triton.row")
    work = workload(RMSNORM, (4, 64))
    with pytest.raises(BuildFailed, match="Triton can't compile row_kernel"):
        compile_only(RMSNORM, kernel, work, {"rows_per_program": 3, "num_warps": 1, "hint": "none", "weight": "late", "overlap": False})


@needs_triton
def test_no_load_or_store_has_both_a_cache_modifier_and_an_eviction_policy() -> None:
    import inspect

    modules = {load(kernel.entry).__module__ for kernel in KERNELS} | {"kernelyard.plugins.triton_jit.norm_gradient"}
    lines = [line for name in modules for line in inspect.getsource(importlib.import_module(name)).splitlines()]
    assert not [line for line in lines if "cache_modifier=" in line and "eviction_policy=" in line]


# Declarations ---------------------------------------------------------------------------------------


@every_kernel
def test_the_default_and_the_hints_are_in_the_space_of_every_point_it_serves(kernel: Kernel) -> None:
    op = OPS[kernel.op]
    for device, matrix in (("cuda", "performance"), ("cuda", "correctness"), ("cpu", "correctness"), ("cuda", "held_out")):
        for point in op.matrix(matrix, "cuda").points:
            work = op.workload(point, device)
            if point.layout == "contiguous" and work.dim(op.dims[-1]) <= kernel.support.most.get("cols", work.dim(op.dims[-1])):
                for config in kernel.space.hints_for(work):
                    assert kernel.space.allows(config, work), (work.label(), config)


def test_rows_that_no_single_stride_reaches_are_refused_with_the_strides() -> None:
    x = torch.empty(4, 6, 32)[:, :5]
    work = SOFTMAX.workload_of((x,))
    answer = named("softmax", "triton.row").support.predicates[0](work)
    assert "(192, 32, 1)" in answer.reason


def test_the_unit_is_what_divides_both_width_and_stride() -> None:
    assert row_view(workload(RMSNORM, (7, 1000))).unit == 8
    assert row_view(workload(RMSNORM, (7, 4095))).unit == 1
    view = row_view(workload(RMSNORM, (7, 4096), layout="row_strided"))
    assert (view.unit, view.cols_units * view.unit, view.stride_units * view.unit) == (8, 4096, 4104)


def test_on_a_cpu_it_is_for_checking_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = plugin.backends[0]
    monkeypatch.setattr(probe, "installed", lambda package: True)
    assert backend.available("cpu", "check")
    assert "kernelyard check" in backend.available("cpu", "run").reason


def test_on_a_gpu_it_needs_triton_and_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = plugin.backends[0]
    monkeypatch.setattr(probe, "installed", lambda package: True)
    monkeypatch.setattr(probe, "cuda_ready", lambda: no("no NVIDIA GPU: the driver sees none"))
    assert "no NVIDIA GPU" in backend.available("cuda").reason
    monkeypatch.setattr(probe, "cuda_ready", lambda: YES)
    assert backend.available("cuda")
    monkeypatch.setattr(probe, "installed", lambda package: False)
    assert "pip install triton" in backend.available("cuda").reason


# The call by handle, with nothing behind it ---------------------------------------------------------


class Run:
    """Stands where Triton's CudaLauncher does, and records what its `launch` is called with."""

    global_scratch_size = profile_scratch_size = 0
    launch_cooperative_grid, launch_pdl = False, True
    arg_annotations, kernel_signature = "annotations", "signature"

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def launch(self, *args: Any) -> None:
        self.calls.append(args)

    def __call__(self, *args: Any) -> None:
        self.calls.append(("the whole way", *args))


class Handle:
    """What Triton's CompiledKernel is to a call."""

    function, packed_metadata, src = "function", "packed", SimpleNamespace(signature={"x_ptr": "*fp32"})

    def __init__(self) -> None:
        self.run = Run()


GIVEN = {
    (3, 6): lambda values: (3, 1, 1, 77, "function", False, True, None, None, "packed", None, None, None, *values),
    (3, 9): lambda values: (
        3, 1, 1, 77, "function", False, True, "packed", None, None, None, None, None, "annotations", "signature", values,
    ),
}  # fmt: skip


@needs_triton
@pytest.mark.parametrize("version", GIVEN)
def test_a_call_by_handle_gives_the_driver_addresses_and_leaves_a_misaligned_output_to_the_launcher(
    version: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    from kernelyard.plugins.triton_jit import handle, vector_add

    work = workload(VECTOR_ADD, (3000,), "float32")
    launch = vector_add.stream(work, {"block": 1024, "num_warps": 4, "hint": "stream", "overlap": False})
    monkeypatch.setattr(torch.cuda, "current_device", lambda: -1)  # the index that a CPU tensor has
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: -1, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: 77, raising=False)
    monkeypatch.setattr(handle, "_version", lambda: version)
    compiled, elsewhere = Handle(), []
    into = handle.through_handle(launch, compiled, lambda outputs, *args: elsewhere.append(outputs))
    a, b, out = torch.ones(3000), torch.ones(3000), torch.empty(3001)
    for _ in range(2):
        into((out[:3000],), a, b)
    values = (out.data_ptr(), a.data_ptr(), b.data_ptr(), 3000, 1024, False, "evict_first", "evict_first", False)
    assert compiled.run.calls == [GIVEN[version](values)] * 2
    assert elsewhere == []
    into((out[1:],), a, b)
    assert len(compiled.run.calls) == 2 and len(elsewhere) == 1
    assert handle.known(launch, compiled)
    compiled.src = SimpleNamespace(signature={"x": "tensordesc<fp32[64, 64]>"})
    assert not handle.known(launch, compiled), "addresses are no descriptors"


@needs_triton
def test_a_kernel_with_scratch_memory_goes_the_whole_way(monkeypatch: pytest.MonkeyPatch) -> None:
    from kernelyard.plugins.triton_jit import handle, vector_add

    config = {"block": 1024, "num_warps": 4, "hint": "stream", "overlap": False}
    launch = vector_add.stream(workload(VECTOR_ADD, (3000,), "float32"), config)
    compiled = Handle()
    compiled.run.global_scratch_size = 64
    handle._launcher(launch, compiled)(77, (1, 2, 3))
    assert compiled.run.calls[0][:7] == ("the whole way", 3, 1, 1, 77, "function", "packed")


# Several launches -----------------------------------------------------------------------------------


def test_launches_of_one_call_share_a_workspace_that_is_new_at_each_call() -> None:
    from kernelyard.plugins.triton_jit.build import _in_order, with_workspace

    seen: list[tuple[torch.Tensor, ...]] = []
    first, second = (lambda outputs, *args: seen.append(outputs) for _ in range(2))
    into = with_workspace((TensorSpec((4, 8), "float32"),), _in_order([first, second]))
    out = torch.empty(3)
    for _ in range(2):
        into((out,), "argument")
    assert [len(outputs) for outputs in seen] == [2] * 4 and all(outputs[0] is out for outputs in seen)
    works = [outputs[1] for outputs in seen]
    assert works[0] is works[1] and works[2] is works[3] and works[0].data_ptr() != works[2].data_ptr()
    assert (works[0].shape, works[0].dtype) == ((4, 8), torch.float32)


@needs_triton
def test_without_rows_only_the_total_runs_and_writes_zeros_and_without_a_weight_there_is_none() -> None:
    kernel = named("rmsnorm_backward", "triton.persistent")

    def launches(work: Workload) -> list[str]:
        return [one.function.__name__ for one in load(kernel.entry)(work, kernel.space.default_for(work)).all()]

    op = OPS["rmsnorm_backward"]
    assert launches(workload(op, (64, 256))) == ["persistent_kernel", "total_kernel"]
    assert launches(workload(op, (0, 256))) == ["total_kernel"]
    x = torch.empty(64, 256)
    assert launches(op.workload_of((x, x, None, 1e-6, 0.0, "fp32"))) == ["persistent_kernel"]


def test_only_the_first_launch_may_have_a_workspace() -> None:
    spec = (TensorSpec((1,), "float32"),)
    later = TritonLaunch(None, (1, 1, 1), tuple, workspace=spec)
    with pytest.raises(DeclarationError, match="first launch"):
        TritonLaunch(None, (1, 1, 1), tuple, then=later)


# On a GPU -------------------------------------------------------------------------------------------


@pytest.mark.gpu
@every_kernel
def test_keeps_the_contract_on_a_gpu(kernel: Kernel, agreement: ModuleType) -> None:
    assert agreement.faults(kernel, "smoke", "cuda")["faults"] == {}


@pytest.mark.gpu
@pytest.mark.parametrize("offset", [0, 1])
def test_an_output_that_starts_anywhere_is_written_right(offset: int, agreement: ModuleType) -> None:
    kernel = named("rmsnorm", "triton.row")
    x, w = torch.randn(5, 256, device="cuda").bfloat16(), torch.randn(256, device="cuda").bfloat16()
    args = (x, w, 1e-6, 0.0, "fp32")
    work = RMSNORM.workload_of(args)
    from kernelyard.plugins.triton_jit.build import builder

    built = builder.build(RMSNORM, kernel, work, kernel.space.default_for(work))
    out = torch.full((5 * 256 + 16,), 123.0, device="cuda").bfloat16()
    inside = out[offset : offset + 5 * 256].view(5, 256)
    assert built.into is not None
    built.into((inside,), *args)
    assert agreement.difference(inside, RMSNORM, work, args) == ""
    assert out[offset + 5 * 256 :].eq(123.0).all() and out[:offset].eq(123.0).all()


@pytest.mark.gpu
def test_a_call_runs_on_torchs_current_stream_and_is_captured_by_a_cuda_graph() -> None:
    from kernelyard.plugins.triton_jit.build import builder

    kernel = named("vector_add", "triton.stream")
    a, b = torch.ones(5000, device="cuda"), torch.ones(5000, device="cuda")
    built = builder.build(VECTOR_ADD, kernel, VECTOR_ADD.workload_of((a, b)), kernel.space.default_for(VECTOR_ADD.workload_of((a, b))))
    built.call(a, b)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = built.call(a, b)
    a.fill_(2.0)
    graph.replay()
    assert out.eq(3.0).all()
