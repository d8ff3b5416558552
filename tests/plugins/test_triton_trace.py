"""Tracing Triton kernels: every access is seen, in bounds or not, with its line and its tensor; one process interprets for all tests."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from kernelyard.registry import registry
from kernelyard.registry.lazy import load
from kernelyard.registry.machine import installed
from kernelyard.registry.op import Point
from kernelyard.registry.spec import Status
from kernelyard.registry.tracing import Compiler, Tracer
from kernelyard.verify.isolation import Outcome, Worker

pytestmark = [pytest.mark.skipif(not installed("triton"), reason="triton is not installed"), pytest.mark.timeout(300)]

JOB = "kernelyard.measure.traffic_jobs:trace_job"
N = 1000
"""Four blocks of 256, the last one cut at 232."""
Run = Callable[..., Outcome]


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    """A job in the one process that interprets, with the planted kernels in its registry."""
    environment = {"TRITON_INTERPRET": "1", "KERNELYARD_EXTRA_PLUGINS": "planted_plugin:plugin"}
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(Path(__file__).with_name("planted")))  # a worker inherits it
        with Worker(env=environment) as worker:

            def job(kernel: str, op: str = "vector_add", dims: tuple[int, ...] = (N,), dtype: str = "float32", **question: Any) -> Outcome:
                table = registry.current().by_op[op]
                workload = registry.current().op(op).workload(Point(dims, dtype), "cuda")
                config = table[kernel].space.default_for(workload) if kernel in table else {}
                asked = {"question": {"line": None, "program": None} | question} if question else {}
                payload = {"op": op, "kernel": kernel, "dims": list(dims), "dtype": dtype, "device": "cuda", "config": config, **asked}
                return worker.run(JOB, payload, 120)

            yield job


@pytest.fixture(scope="module")
def traced(run: Run) -> Callable[..., dict[str, Any]]:
    def report(kernel: str, *args: Any, **named: Any) -> dict[str, Any]:
        outcome = run(kernel, *args, **named)
        assert outcome.value is not None, outcome.reason + outcome.log
        return outcome.value

    return report


def found(report: dict[str, Any]) -> list[tuple[str, str, str]]:
    return [(finding["kind"], finding["access"], finding["tensor"]) for finding in report["findings"]]


def instruction(report: dict[str, Any], text: str) -> dict[str, Any]:
    (one,) = [one for one in report["instructions"] if text in one["source"]]
    return one  # type: ignore[no-any-return]


# Kernels that are right ------------------------------------------------------------------------------

ONE_PASS = [
    ("vector_add", "triton.stream", (5000,), 1.0),
    ("softmax", "triton.row", (16, 1000), 1.0),
    ("rmsnorm", "triton.persistent", (9, 129), None),
    ("rmsnorm", "triton.row", (5, 777), None),
    ("softmax", "triton.sweep", (3, 5000), 1.5),
    ("rmsnorm", "triton.sweep", (3, 5000), None),
]
"""With requested bytes over the model's, where the model names it: the weight is asked for by every program."""


@pytest.mark.parametrize(("op", "kernel", "dims", "requested"), ONE_PASS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_unique_bytes_are_the_models_for_each_tensor(op: str, kernel: str, dims: Any, requested: Any, dtype: str, traced: Any) -> None:
    report = traced(kernel, op, dims, dtype)
    assert report["findings"] == []
    assert report["totals"]["unique_ratio"] == pytest.approx(1, rel=0.01)
    for tensor in report["tensors"]:
        assert tensor["read_unique"] + tensor["written_unique"] == tensor["model_bytes"]
    if requested is not None:
        assert report["totals"]["requested_ratio"] == pytest.approx(requested, rel=0.01)
    else:
        assert report["totals"]["requested_bytes"] > report["totals"]["unique_bytes"]


def test_copies_by_descriptor_are_accesses_of_their_tensors(traced: Any) -> None:
    report = traced("triton.persistent", "matmul", (1, 40, 64, 72), "bfloat16")
    assert report["findings"] == []
    assert {t["name"]: t["read_unique"] + t["written_unique"] for t in report["tensors"]} == {"a": 5760, "b": 9216, "out": 5120}


def test_two_copies_go_to_two_workspaces_and_neither_is_out_of_bounds(traced: Any) -> None:
    report = traced("triton.repacked", "matmul", (1, 33, 63, 65), "bfloat16")
    assert report["findings"] == []
    own = {t["name"]: t["written_unique"] for t in report["tensors"] if t["role"] == "workspace"}
    assert own == {"to": 33 * 128 * 2, "to 2": 65 * 64 * 2}, "rows at multiples of 128 bytes, zeros behind them"


@pytest.mark.parametrize(
    ("op", "kernel", "dims", "dtype"),
    [
        ("rmsnorm", "triton.row", (5, 777), "float32"),
        ("rmsnorm", "triton.row", (37, 1000), "bfloat16"),
        ("rmsnorm", "triton.sweep", (5, 4095), "bfloat16"),
        ("softmax", "triton.row", (300, 100), "bfloat16"),
        ("vector_add", "triton.stream", (5000,), "bfloat16"),
    ],
)
def test_the_modelled_layouts_are_the_compilers(op: str, kernel: str, dims: Any, dtype: str, traced: Any) -> None:
    from triton.backends.compiler import GPUTarget

    from kernelyard.plugins.triton_jit.compile import compiled

    everything = registry.current()
    contract, declared = everything.op(op), everything.kernel(op, kernel)
    workload = contract.workload(Point(dims, dtype), "cuda")
    launch = load(declared.entry)(workload, declared.space.default_for(workload))
    text = str(compiled(contract, launch, workload, GPUTarget("cuda", 90, 32)).asm["ttgir"])
    named = {name: layout(rest) for name, rest in re.findall(r"(#blocked\d*) = #ttg\.blocked<\{(.*?)\}>", text)}
    theirs = {kind: [named[name] for name in re.findall(rf"tt\.{kind} .*(#blocked\d*)>", text)] for kind in ("load", "store")}
    for kind, layouts in theirs.items():
        ours = [one["layout"] for one in traced(kernel, op, dims, dtype)["instructions"] if one["kind"] == kind]
        assert layouts and {str(one) for one in ours} == {str(one) for one in layouts}


def layout(text: str) -> dict[str, list[int]]:
    """A layout as Triton writes it, by the model's names."""
    names = {"sizePerThread": "held", "threadsPerWarp": "lanes", "warpsPerCTA": "warps", "order": "order"}
    return {ours: [int(word) for word in re.search(rf"{theirs} = \[([\d, ]+)\]", text)[1].split(",")] for theirs, ours in names.items()}  # type: ignore[index]


def test_a_row_of_odd_width_takes_over_the_weights_layout_and_needs_four_times_the_sectors(traced: Any) -> None:
    load_x = instruction(traced("triton.row", "rmsnorm", (5, 777)), "tl.load(x_ptr")
    assert load_x["access_bytes"] == 4 and load_x["layout"]["held"] == [1, 4]
    assert load_x["sectors"] > 3.5 * load_x["ideal_sectors"]


def test_a_mask_at_the_end_is_counted(traced: Any) -> None:
    store = instruction(traced("triton.shifted"), "tl.store(out_ptr")
    assert store["masked_share"] == pytest.approx(24 / 1024)
    assert store["requested_bytes"] == 4 * N and store["programs"] == 4


def test_every_other_element_takes_twice_the_sectors(traced: Any) -> None:
    report = traced("triton.every_other", dims=(1024,))
    load_a, store = instruction(report, "tl.load"), instruction(report, "tl.store")
    assert (load_a["sectors"] / load_a["requests"], load_a["ideal_sectors"] / load_a["requests"]) == (8, 4)
    assert load_a["unique_bytes"] == load_a["requested_bytes"] == 2048
    assert (store["block"], store["requests"], store["sectors"], store["unique_bytes"]) == ([1], 4, 4, 16)


def test_tensor_descriptors_are_traced_with_the_bounds_that_they_check(traced: Any) -> None:
    report = traced("triton.described")
    assert report["findings"] == []
    assert {one["tensor"]: one["requested_bytes"] for one in report["instructions"]} == {"a": 4 * N, "b": 4 * N, "out": 4 * N}


def test_block_pointers_are_traced_with_the_bounds_that_they_check(run: Run) -> None:
    outcome = run("triton.pointed")
    if "Block pointers have been removed" in outcome.reason:
        pytest.skip("this Triton has no block pointers any more")
    assert outcome.value is not None and outcome.value["findings"] == []
    assert {one["tensor"]: one["requested_bytes"] for one in outcome.value["instructions"]} == {"a": 4 * N, "b": 4 * N, "out": 4 * N}


def test_a_tensor_of_the_kernels_own_is_a_workspace_and_may_be_read(traced: Any) -> None:
    report = traced("triton.borrowing")
    assert report["findings"] == []
    (scratch,) = [tensor for tensor in report["tensors"] if tensor["role"] == "workspace"]
    assert (scratch["name"], scratch["read_unique"], scratch["written_unique"], scratch["model_bytes"]) == ("scratch", 4 * N, 4 * N, 0)


@pytest.mark.parametrize(
    "kernel, dims",
    [("triton.persistent", (9, 129)), ("triton.split", (9, 129)), ("triton.split", (40, 32768)), ("triton.shifted", (9, 129))],
)
def test_a_launch_reads_what_the_programs_of_the_one_before_left_and_that_is_no_race(
    kernel: str, dims: tuple[int, ...], traced: Any
) -> None:
    report = traced(kernel, "rmsnorm_backward", dims, "bfloat16")
    assert report["findings"] == []
    share = next(tensor for tensor in report["tensors"] if tensor["name"] == "share")
    assert (share["role"], share["model_bytes"]) == ("workspace", 0) and 0 < share["read_unique"] <= share["written_unique"]
    outputs = {tensor["name"]: tensor for tensor in report["tensors"] if tensor["role"] == "output"}
    assert {name: one["written_unique"] == one["model_bytes"] for name, one in outputs.items()} == {"dx": True, "dw": True}


def test_nothing_to_do_is_traced_as_nothing(traced: Any) -> None:
    report = traced("triton.shifted", dims=(0,))
    assert report["instructions"] == [] and report["findings"] == [] and report["totals"]["unique_ratio"] is None


# Planted faults --------------------------------------------------------------------------------------


def test_a_load_a_little_past_the_end_is_found_with_line_tensor_program_and_distance(traced: Any) -> None:
    report = traced("triton.shifted")
    (finding,) = report["findings"]
    assert (finding["kind"], finding["tensor"], finding["program"], finding["elements"]) == ("out-of-bounds", "a", [3, 0, 0], 3)
    assert finding["line"] == instruction(report, "a_ptr + index + 3")["line"]
    assert "3 past its end (index 1002, the tensor spans 1000 elements), in program (3, 0, 0)" in finding["sentence"]


def test_accesses_far_outside_are_found_and_not_executed(traced: Any) -> None:
    report = traced("triton.far")
    outside = [finding for finding in report["findings"] if finding["kind"] == "out-of-bounds"]
    accesses = [(finding["access"], finding["tensor"]) for finding in outside]
    assert accesses == [("load", "a"), ("store", "b"), ("atomic", "out"), ("atomic", "out")]
    assert [finding["element"] for finding in outside] == [-1023 * 10**9, 1023 * 10**9, 1000 + 1023 * 10**9, -(10**9)]
    assert "before its start" in outside[0]["sentence"] and outside[0]["program"] == [3, 0, 0]


def test_programs_that_store_different_values_to_one_address_race(traced: Any) -> None:
    (finding,) = traced("triton.differing")["findings"]
    assert (finding["kind"], finding["element"], finding["program"], finding["other"]) == ("write race", 0, [1, 0, 0], [0, 0, 0])
    assert "with different values" in finding["sentence"]


def test_programs_that_store_the_same_value_race_and_it_is_told(traced: Any) -> None:
    (finding,) = traced("triton.agreeing")["findings"]
    assert finding["kind"] == "write race" and "with the same value" in finding["sentence"]


def test_an_output_read_before_it_is_written_is_found(traced: Any) -> None:
    report = traced("triton.early")
    assert found(report) == [("read-before-write", "load", "out")]
    assert report["findings"][0]["elements"] == N


def test_a_load_of_what_another_program_stored_is_a_race(traced: Any) -> None:
    (finding,) = traced("triton.neighbour")["findings"]
    assert (finding["kind"], finding["access"], finding["program"], finding["other"]) == ("read race", "load", [1, 0, 0], [0, 0, 0])
    assert "a GPU runs the two in any order" in finding["sentence"] and finding["elements"] == 3 * 256


def test_atomics_may_meet_but_not_on_an_output_that_nobody_cleared(traced: Any) -> None:
    assert found(traced("triton.adding")) == [("read-before-write", "atomic", "out")]


def test_a_kernel_that_fails_names_the_program_and_the_reason(run: Run) -> None:
    outcome = run("triton.failing")
    assert outcome.status is Status.BUILD_FAILED
    assert "program (1, 0, 0) of failing_kernel" in outcome.reason and "only one program, please" in outcome.reason


# The builder -----------------------------------------------------------------------------------------


def test_the_hook_is_gone_after_a_trace_even_one_that_failed(run: Run, traced: Any) -> None:
    run("triton.failing")
    assert traced("triton.stream")["findings"] == []
    outcome = run("triton.stream", dims=(128,), line=9999)
    assert outcome.status is Status.UNSUPPORTED and re.search(r"Lines that access memory: \d+, \d+, \d+\.", outcome.reason)


def test_the_builder_offers_both_and_torchs_neither() -> None:
    triton, eager = registry.current().builder("triton"), registry.current().builder("torch")
    assert isinstance(triton, Tracer) and isinstance(triton, Compiler)
    assert not isinstance(eager, Tracer) and not isinstance(eager, Compiler)


def test_what_the_compiler_says_of_a_kernel_on_hopper() -> None:
    builder, kernel = registry.current().builder("triton"), registry.current().kernel("softmax", "triton.row")
    op = registry.current().op("softmax")
    workload = op.workload(Point((4096, 1024), "bfloat16"), "cuda")
    assert isinstance(builder, Compiler)
    told = builder.compile_for(op, kernel, workload, kernel.space.default_for(workload), "sm_90")
    assert 0 < told["registers"] <= 255 and told["local_bytes"] == 0
    assert told["load_bytes"] == told["store_bytes"] == 16
    assert set(told) == {"registers", "local_bytes", "shared_bytes", "load_bytes", "store_bytes"}


def test_a_traced_tensor_keeps_its_strides_and_its_misalignment() -> None:
    from kernelyard.plugins.triton_jit.trace import _apart

    tensor = torch.arange(33, dtype=torch.float32)[1:].view(4, 8)[:, :5]
    copy = _apart(tensor)
    assert torch.equal(copy, tensor) and copy.stride() == tensor.stride()
    assert copy.data_ptr() % 256 == tensor.data_ptr() % 16
