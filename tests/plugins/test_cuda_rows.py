"""The CUDA kernels over rows: what they refuse, what is built for which GPU, and, on one, whether they keep the contracts."""

from __future__ import annotations

import re
import subprocess
from dataclasses import replace
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import pytest
import torch

from kernelyard.errors import Unsupported
from kernelyard.plugins.cuda import probe, rows
from kernelyard.plugins.cuda.build import recipe
from kernelyard.plugins.cuda.plugin import plugin
from kernelyard.plugins.cuda.rmsnorm_backward import alike, period
from kernelyard.plugins.native.build import artefact
from kernelyard.registry import registry
from kernelyard.registry.kernel import Kernel
from kernelyard.registry.lazy import load
from kernelyard.registry.op import Op, Point
from kernelyard.registry.spec import Config, TensorSpec, Workload

KERNELS = tuple(kernel for kernel in plugin.kernels if registry.current().ops[kernel.op].dims == ("rows", "cols"))
builds = pytest.mark.skipif(not probe.can_build(), reason=probe.can_build().reason)
each_kernel = pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: f"{kernel.op}/{kernel.name}")


def kernel_of(op: str, name: str) -> Kernel:
    return next(kernel for kernel in KERNELS if (kernel.op, kernel.name) == (op, name))


def op_of(kernel: Kernel) -> Op:
    return registry.current().op(kernel.op)


def workload(kernel: Kernel, shape: tuple[int, int], dtype: str = "bfloat16", layout: str = "contiguous") -> Workload:
    return op_of(kernel).workload(Point(shape, dtype, layout), "cuda")


def gradient(x: TensorSpec, dy: TensorSpec) -> Workload:
    dims = (("rows", x.shape[0]), ("cols", x.shape[1]))
    return Workload("rmsnorm_backward", (("dy", dy), ("x", x), ("w", None)), (("offset", 0.0), ("casting", "fp32")), "cuda", dims)


# What is supported ----------------------------------------------------------------------------------


@each_kernel
def test_the_authors_config_is_in_the_space_of_every_point(kernel: Kernel, agreement: ModuleType) -> None:
    assert agreement.outside_of_space(kernel) == []


@pytest.mark.parametrize("op", ["rmsnorm", "softmax"])
@pytest.mark.parametrize(("cols", "name"), [(32768, "cuda.row"), (131072, "cuda.cluster")])
def test_a_row_is_served_up_to_the_width_that_its_registers_hold(op: str, cols: int, name: str) -> None:
    kernel = kernel_of(op, name)
    for dtype in ("float32", "bfloat16"):
        work = workload(kernel, (2, cols), dtype)
        assert kernel.support.fits(work) and kernel.space.allows(kernel.space.default_for(work), work)
    assert f"cols is {cols + 1}, the most is {cols}" in kernel.support.fits(workload(kernel, (2, cols + 1))).reason


@pytest.mark.parametrize("op", ["rmsnorm", "softmax"])
def test_a_ring_takes_rows_of_whole_16_bytes_of_which_two_fit_in_shared_memory(op: str) -> None:
    fits = kernel_of(op, "cuda.ring").support.fits
    ring = kernel_of(op, "cuda.ring")
    assert fits(workload(ring, (9, 32768))) and fits(workload(ring, (9, 16384), "float32"))
    assert "two rows of 131072 bytes don't fit in 227 KiB" in fits(workload(ring, (9, 32768), "float32")).reason
    assert "rows of 4095 columns, 4095 apart, don't all start" in fits(workload(ring, (9, 4095))).reason
    x = TensorSpec((9, 4096), "bfloat16", (4100, 1))
    assert "rows of 4096 columns, 4100 apart" in fits(replace(workload(ring, (9, 4096)), tensors=(("x", x),))).reason
    x = TensorSpec((9, 4096), "bfloat16", (4096, 1), aligned=False)
    assert "x must start at a multiple of 16 bytes" in fits(replace(workload(ring, (9, 4096)), tensors=(("x", x),))).reason


@pytest.mark.parametrize("op", ["rmsnorm", "softmax", "add_rmsnorm"])
def test_rows_that_wait_in_shared_memory_are_whole_16_bytes_of_every_input(op: str) -> None:
    kernel = kernel_of(op, "cuda.staged")
    work = workload(kernel, (9, 32768))
    assert kernel.support.fits(work) and kernel.support.fits(workload(kernel, (9, 65536), "float32"))
    assert "rows of x of 4095 columns, 4095 apart, don't all start" in kernel.support.fits(workload(kernel, (9, 4095))).reason
    name = "residual" if op == "add_rmsnorm" else "x"
    apart, off = TensorSpec((9, 32768), "bfloat16", (32772, 1)), TensorSpec((9, 32768), "bfloat16", (32768, 1), aligned=False)
    for spec, reason in ((apart, f"rows of {name} of 32768 columns, 32772 apart"), (off, f"{name} must start at a multiple of 16 bytes")):
        tensors = tuple((each, spec if each == name else given) for each, given in work.tensors)
        assert reason in kernel.support.fits(replace(work, tensors=tensors)).reason


@pytest.mark.parametrize(("cols", "whole"), [(768, 1), (1024, 1), (776, 0), (4095, 0)])
def test_no_thread_asks_whether_it_has_a_vector_where_all_have_as_many(cols: int, whole: int) -> None:
    kernel = kernel_of("softmax", "cuda.row")
    work = workload(kernel, (4096, cols))
    assert load(kernel.entry)(work, kernel.space.default_for(work)).defines["WHOLE"] == whole


@pytest.mark.parametrize(
    ("op", "shape", "first"),
    [
        ("rmsnorm", (16, 4096), "triton.row"), ("rmsnorm", (4096, 768), "cuda.row"), ("rmsnorm", (32768, 128), "triton.row"),
        ("rmsnorm", (16384, 4096), "triton.sweep"), ("rmsnorm", (8192, 4096), "cuda.row"), ("rmsnorm", (4096, 8192), "cuda.row"),
        ("rmsnorm", (1000, 4095), "cuda.row"),
        ("rmsnorm", (2048, 32768), "triton.sweep"),
        ("add_rmsnorm", (16384, 4096), "triton.sweep"), ("add_rmsnorm", (8192, 1024), "triton.row"),
        ("softmax", (8192, 4096), "triton.row"), ("softmax", (2048, 32768), "cuda.staged"), ("softmax", (1000, 4095), "triton.shifted"),
        ("add_rmsnorm", (2048, 32768), "cuda.staged"),
        ("rmsnorm_backward", (1000, 4095), "cuda.cluster"), ("rmsnorm_backward", (16384, 4096), "triton.persistent"),
        ("rmsnorm_backward", (2048, 32768), "cuda.cluster"), ("rmsnorm_backward", (8192, 1024), "triton.persistent"),
        ("rmsnorm", (8192, 1024), "cuda.ring"),
    ],
)  # fmt: skip
def test_without_a_choice_the_kernel_comes_first_that_was_measured_fastest(op: str, shape: tuple[int, int], first: str) -> None:
    work = registry.current().op(op).workload(Point(shape, "bfloat16"), "cuda")
    fitting = [kernel for kernel in registry.current().kernels(op) if kernel.support.fits(work)]
    assert max(fitting, key=lambda kernel: kernel.priority_for(work)).name == first


@pytest.mark.parametrize(
    ("shape", "strides"),
    [((16, 4095), (4095, 1)), ((16, 100), (100, 1)), ((9, 64), (64, 1)), ((5, 33), (66, 1)), ((4, 7), (0, 1))],
    ids=str,
)
@pytest.mark.parametrize(("dtype", "size"), [("bfloat16", 2), ("float32", 4)])
def test_rows_a_period_apart_begin_at_the_same_place_to_16_bytes_and_no_nearer_ones_do(
    shape: tuple[int, int], strides: tuple[int, int], dtype: str, size: int
) -> None:
    x = TensorSpec(shape, dtype, strides)
    begins = [row * strides[0] * size % 16 for row in range(17)]
    again = next(n for n in range(1, 17) if all(a == b for a, b in zip(begins, begins[n:], strict=False)))
    assert period(gradient(x, x)) == again


def test_a_gradient_is_refused_where_rows_of_dy_and_x_lie_differently_to_16_bytes() -> None:
    x = TensorSpec((8, 100), "bfloat16", (100, 1))
    assert alike(gradient(x, TensorSpec((8, 100), "bfloat16", (108, 1))))
    assert "begin differently to 16 bytes" in alike(gradient(x, TensorSpec((8, 100), "bfloat16", (104, 1)))).reason
    assert "dy must start at a multiple of 16 bytes" in alike(gradient(x, TensorSpec((8, 100), "bfloat16", (100, 1), aligned=False))).reason


@each_kernel
def test_what_needs_hopper_is_refused_on_an_older_gpu_and_the_rest_is_built(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    from kernelyard.registry.spec import DeviceIdentity

    monkeypatch.setattr(rows, "cuda_ready", lambda: True)
    monkeypatch.setattr(rows, "identity", lambda device: DeviceIdentity("cuda", "A100", "sm_80", "", ""))
    work = workload(kernel, (4, 8192))
    wanted = {**kernel.space.default_for(work), "overlap": False}
    if kernel.name == "cuda.ring":
        with pytest.raises(Unsupported, match=r"ring of rows .*sm_80"):
            load(kernel.entry)(work, wanted)
        return
    with pytest.raises(Unsupported, match=r"launch that overlaps .*sm_80"):
        load(kernel.entry)(work, {**wanted, "overlap": True, **({"cluster": 1} if "cluster" in wanted else {})})
    if kernel.name == "cuda.row":
        assert load(kernel.entry)(work, wanted).defines["CLUSTER"] == 1
    else:
        with pytest.raises(Unsupported, match=r"cluster of thread blocks .*sm_80"):
            load(kernel.entry)(work, {**wanted, "cluster": 2})


@each_kernel
def test_the_vectors_of_all_threads_cover_a_row_in_every_config(kernel: Kernel) -> None:
    for cols in (4096, 4103, 8192):
        work = workload(kernel, (1000, cols))
        for config in list(kernel.space.configs(work))[::7] if kernel.support.fits(work) else ():
            given = load(kernel.entry)(work, config).defines
            assert int(given["ROW_THREADS"]) * int(given["VECTORS"]) * int(given["CLUSTER"]) >= cols // 8


# Building, with or without a GPU --------------------------------------------------------------------


def disassembled(library: Path) -> str:
    """Machine code by the cuobjdump that comes with Triton; the test is skipped where there is none."""
    found = find_spec("triton")
    tool = Path(str(found.origin)).parent / "backends/nvidia/bin/cuobjdump" if found else Path("/nonexistent")
    if not tool.exists():
        pytest.skip("no cuobjdump beside triton")
    return subprocess.run([str(tool), "-sass", str(library)], capture_output=True, text=True, check=True, timeout=60).stdout


def functions(code: str) -> list[str]:
    return re.split(r"\n\s+Function : ", code)[1:]


@builds
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("op", "shape", "function", "loads"),
    [
        ("rmsnorm", (2048, 32768), "normalise", r"\bLDG\.E\.128\b"),  # over a cluster
        ("rmsnorm_backward", (8192, 4096), "walk", r"\bLDGSTS\.E\.BYPASS\.128\b"),
    ],
)
def test_rows_of_any_width_are_read_in_16_bytes_without_spills_or_fences_of_the_whole_gpu(
    op: str, shape: tuple[int, int], function: str, loads: str, home: Path
) -> None:
    kernel = kernel_of(op, "cuda.cluster")
    work = workload(kernel, shape)
    library = artefact(load(kernel.entry)(work, kernel.space.default_for(work)), kernel.folder, kernel.name, recipe("9.0a"))
    over_rows = [code for code in functions(disassembled(library)) if function in code.partition("\n")[0]]
    assert len(over_rows) == 2, "one for rows of whole vectors, one for rows that start anywhere"
    for code in over_rows:
        assert re.search(loads, code)
        assert not re.search(r"\b(STL|LDL|MEMBAR)\b", code)


@builds
@pytest.mark.timeout(300)
@pytest.mark.parametrize("op", ["rmsnorm", "softmax"])
def test_a_ring_s_rows_come_by_bulk_copies_and_nothing_spills(op: str, home: Path) -> None:
    kernel = kernel_of(op, "cuda.ring")
    work = workload(kernel, (2048, 32768))
    library = artefact(load(kernel.entry)(work, kernel.space.default_for(work)), kernel.folder, kernel.name, recipe("9.0a"))
    forms = [code for code in functions(disassembled(library)) if "from_ring" in code.partition("\n")[0]]
    assert len(forms) == 2, "one for an output of whole vectors, one for an output that starts anywhere"
    for code in forms:
        assert re.search(r"\bUBLKCP\b", code) and re.search(r"\bLDS\.128\b", code)
        assert not re.search(r"\b(STL|LDL|MEMBAR)\b", code)


@builds
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("op", "second"), [("rmsnorm", ""), ("add_rmsnorm", ""), ("softmax", "kept"), ("softmax", "again")])
def test_staged_rows_come_past_registers_and_as_many_blocks_as_the_space_allows_don_t_spill(op: str, second: str, home: Path) -> None:
    kernel = kernel_of(op, "cuda.staged")
    work = workload(kernel, (2048, 32768))
    config = next(config for config in kernel.space.hints_for(work) if config.get("second", "") == second)
    library = artefact(load(kernel.entry)(work, config), kernel.folder, kernel.name, recipe("9.0a"))
    forms = [code for code in functions(disassembled(library)) if "staged" in code.partition("\n")[0]]
    assert len(forms) == 2, "one for an output of whole vectors, one for an output that starts anywhere"
    for code in forms:
        assert re.search(r"\bLDGSTS\.E\.BYPASS\.128\b", code) and re.search(r"\bLDS\.128\b", code)
        assert not re.search(r"\b(STL|LDL|MEMBAR)\b", code)


# On a GPU -------------------------------------------------------------------------------------------

CONFIGS: dict[str, tuple[Config, ...]] = {
    "rmsnorm/cuda.row": (
        {"threads": 16, "rows": 4, "each": 2, "weight": "early"}, {"threads": 96, "rows": 1, "each": 1, "weight": "late"},
        {"threads": 64, "rows": 2, "each": 4, "weight": "early"},
    ),
    "softmax/cuda.row": (
        {"threads": 16, "rows": 4, "each": 2}, {"threads": 96, "rows": 1, "each": 1}, {"threads": 64, "rows": 2, "each": 4},
    ),
    "rmsnorm/cuda.cluster": ({"threads": 64, "cluster": 8, "weight": "early"}, {"threads": 96, "cluster": 2, "weight": "late"}),
    "softmax/cuda.cluster": ({"threads": 64, "cluster": 8}, {"threads": 96, "cluster": 2}),
    "rmsnorm/cuda.ring": ({"threads": 128, "stages": 2, "blocks_per_sm": 1}, {"threads": 512, "stages": 4, "blocks_per_sm": 2}),
    "softmax/cuda.ring": ({"threads": 128, "stages": 2, "blocks_per_sm": 1}, {"threads": 512, "stages": 4, "blocks_per_sm": 2}),
    "softmax/cuda.staged": (
        {"threads": 128, "cluster": 1, "blocks_per_sm": 2, "second": "kept"},
        {"threads": 256, "cluster": 1, "blocks_per_sm": 2, "second": "again"},
        {"threads": 128, "cluster": 2, "blocks_per_sm": 1, "second": "again"},
        {"threads": 128, "cluster": 4, "blocks_per_sm": 3, "second": "kept"},
    ),
    "rmsnorm/cuda.staged": ({"threads": 128, "cluster": 1, "blocks_per_sm": 2}, {"threads": 128, "cluster": 4, "blocks_per_sm": 3}),
    "add_rmsnorm/cuda.staged": ({"threads": 128, "cluster": 1, "blocks_per_sm": 2}, {"threads": 128, "cluster": 4, "blocks_per_sm": 3}),
    "rmsnorm_backward/cuda.cluster": (
        {"threads": 64, "cluster": 1, "stages": 2, "blocks_per_sm": 1, "ahead": False},
        {"threads": 96, "cluster": 2, "stages": 3, "blocks_per_sm": 2, "ahead": False},
        {"threads": 64, "cluster": 8, "stages": 4, "blocks_per_sm": 1, "ahead": False},
        {"threads": 256, "cluster": 1, "stages": 3, "blocks_per_sm": 1, "ahead": True},
        {"threads": 96, "cluster": 2, "stages": 4, "blocks_per_sm": 2, "ahead": True},
        {"threads": 64, "cluster": 8, "stages": 3, "blocks_per_sm": 1, "ahead": True},
    ),
}  # fmt: skip
SHAPES = ((1, 13), (7, 129), (300, 1000), (33, 4095), (2, 4111), (700, 4096), (601, 1032), (40, 4104))


@pytest.mark.gpu
@builds
@pytest.mark.timeout(600)
@each_kernel
def test_keeps_the_contract_on_a_gpu(kernel: Kernel, agreement: ModuleType) -> None:
    assert agreement.faults(kernel, "smoke", "cuda")["faults"] == {}


@pytest.mark.gpu
@builds
@pytest.mark.timeout(600)
@each_kernel
def test_every_form_keeps_the_contract_at_every_alignment(kernel: Kernel, agreement: ModuleType) -> None:
    op, found = op_of(kernel), {}
    for config in CONFIGS[f"{kernel.op}/{kernel.name}"]:
        for shape in SHAPES:
            work = workload(kernel, shape, "float16")
            whole = {**config, "hint": "none", "overlap": shape[0] % 2 == 0}
            if kernel.support.fits(work) and kernel.space.allows(whole, work):
                case = ("", op, op.inputs(work, torch.Generator("cuda").manual_seed(1)))
                found[str((config, shape))] = agreement.fault(kernel, case, whole)
    assert found
    assert {case: text for case, text in found.items() if text} == {}


@pytest.mark.gpu
@builds
@pytest.mark.timeout(300)
@each_kernel
@pytest.mark.parametrize("offset", [0, 1, 8])
def test_an_output_that_starts_anywhere_is_written_and_nothing_beside_it(kernel: Kernel, offset: int, agreement: ModuleType) -> None:
    from kernelyard.plugins.cuda.build import builder

    op, work = op_of(kernel), workload(kernel, (5, 4096 if kernel.name in ("cuda.ring", "cuda.staged") else 4099))
    args = op.inputs(work, torch.Generator("cuda").manual_seed(2))
    built = builder.build(op, kernel, work, kernel.space.default_for(work))
    first, *others = op.empty(*args)
    whole = torch.full((first.numel() + 64,), 123.0, device="cuda", dtype=first.dtype)
    inside = whole[32 + offset : 32 + offset + first.numel()].view(first.shape)
    assert built.into is not None
    built.into((inside, *others), *args)
    assert agreement.difference((inside, *others), op, work, args) == ""
    assert whole[: 32 + offset].eq(123.0).all() and whole[32 + offset + first.numel() :].eq(123.0).all()


@pytest.mark.gpu
@builds
@pytest.mark.timeout(300)
@each_kernel
def test_launches_that_overlap_see_what_the_ones_before_wrote(kernel: Kernel) -> None:
    from kernelyard.plugins.cuda.build import builder

    op, work = op_of(kernel), workload(kernel, (264, 4096))
    args = op.inputs(work, torch.Generator("cuda").manual_seed(3))
    built = builder.build(op, kernel, work, {**kernel.space.default_for(work), "overlap": True})
    place = [argument.name for argument in op.arguments].index("x")

    def chain() -> list[torch.Tensor]:
        """Each call's x is the output of the one before."""
        results, current = [], list(args)
        for _ in range(50):
            result = built.call(*current)
            current[place] = result[0] if isinstance(result, tuple) else result
            results.append(current[place])
        return results

    graph = torch.cuda.CUDAGraph()
    chain()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        captured = chain()
    graph.replay()
    torch.cuda.synchronize()
    waited = []
    for before in [args[place], *captured[:-1]]:
        given = list(args)
        given[place] = before
        result = built.call(*given)
        torch.cuda.synchronize()
        waited.append(result[0] if isinstance(result, tuple) else result)
    assert all(torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in zip(captured, waited, strict=True))
    assert any(not torch.equal(a, b) for a, b in pairwise(captured))
