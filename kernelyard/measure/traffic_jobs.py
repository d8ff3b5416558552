"""Tracing and compiling one kernel as jobs, dicts in and dicts out: a process of Triton's either interprets or compiles."""

from __future__ import annotations

from typing import Any

from kernelyard.measure.explaining import Question
from kernelyard.measure.traffic import measure
from kernelyard.registry import registry
from kernelyard.registry.kernel import Kernel
from kernelyard.registry.lazy import torch
from kernelyard.registry.op import TIMED_SEED, Op, Point
from kernelyard.registry.spec import Workload
from kernelyard.registry.tracing import Compiler, Tracer

TRACE, COMPILE = "kernelyard.measure.traffic_jobs:trace_job", "kernelyard.measure.traffic_jobs:compile_job"
HOPPER = "sm_90"


def trace_job(payload: dict[str, Any]) -> dict[str, Any]:
    """{op, kernel, dims, dtype, device, config, question} -> a `Traffic` as a dict; values are random, by a fixed seed."""
    op, kernel, workload = _meant(payload)
    builder = registry.current().builder(kernel.backend)
    assert isinstance(builder, Tracer), f"{kernel.backend} can't trace"
    args = op.inputs(workload, torch.Generator().manual_seed(TIMED_SEED))
    trace = builder.trace(op, kernel, workload, payload["config"], args)
    question = payload.get("question")
    asked = None if question is None else Question(question["line"], None if question["program"] is None else tuple(question["program"]))
    return measure(trace, op.cost(workload).bytes, asked).as_dict()


def compile_job(payload: dict[str, Any]) -> dict[str, Any]:
    """{op, kernel, dims, dtype, device, config} -> what the compiler says of the kernel on Hopper."""
    op, kernel, workload = _meant(payload)
    builder = registry.current().builder(kernel.backend)
    assert isinstance(builder, Compiler), f"{kernel.backend} can't compile for a GPU that is not here"
    return dict(builder.compile_for(op, kernel, workload, payload["config"], HOPPER))


def _meant(payload: dict[str, Any]) -> tuple[Op, Kernel, Workload]:
    everything = registry.current()
    op = everything.op(payload["op"])
    point = Point(tuple(payload["dims"]), payload["dtype"])
    return op, everything.kernel(op.name, payload["kernel"]), op.workload(point, payload["device"])
