"""Jobs for a `Worker`: dicts in, dicts out, nothing shared."""

from __future__ import annotations

from typing import Any

import torch

from kernelyard.errors import Unsupported
from kernelyard.registry import registry
from kernelyard.registry.kernel import Kernel
from kernelyard.registry.op import Matrix, Op, Point
from kernelyard.registry.spec import Config, Status
from kernelyard.verify.check import Case, build_case, check_kernel
from kernelyard.verify.defences import ALL
from kernelyard.verify.isolation import Worker
from kernelyard.verify.oracle import check_workload
from kernelyard.verify.outcome import CaseResult, CheckReport, report_from

CHECK, CHECK_CASE = "kernelyard.verify.jobs:check_job", "kernelyard.verify.jobs:case_job"


def check_job(payload: dict[str, Any]) -> dict[str, Any]:
    """{op, kernel, matrix, device, config, limit} -> a `CheckReport` as a dict.

    `matrix` is a name, or {"name", "points": [[dims, dtype, layout, statics], ...]} from `matrix_payload`.
    """
    table = registry.current()
    op, kernel = table.op(payload["op"]), table.kernel(payload["op"], payload["kernel"])
    matrix = matrix_from(op, payload["matrix"], payload["device"])
    report = check_kernel(op, kernel, matrix, payload["device"], config=payload.get("config"), limit=payload.get("limit"))
    return report.as_dict()


def case_job(payload: dict[str, Any]) -> dict[str, Any]:
    """{op, kernel, point, device, config, edge, seed} -> a `CaseResult` as a dict: one workload, one kind of values."""
    from dataclasses import asdict

    table = registry.current()
    op, kernel = table.op(payload["op"]), table.kernel(payload["op"], payload["kernel"])
    if not (answer := table.can_run(kernel, payload["device"], "check")):
        raise Unsupported(f"{kernel.name} can't be checked here: {answer.reason}")
    edge, device = payload.get("edge", "random"), payload["device"]
    case = Case(op.workload(_point(payload["point"]), device), edge)
    built = build_case(kernel, table.build, case, payload.get("config"), ALL)
    if isinstance(built, CaseResult):
        return asdict(built)
    return asdict(check_workload(op, kernel, built, case.workload, device=torch.device(device), seed=payload.get("seed", 0), edge=edge))


def check_isolated(
    worker: Worker, op: Op, kernel: Kernel, matrix: Matrix, device: str, *,
    config: Config | None = None, limit: int | None = None, timeout_s: float = 600.0,
) -> CheckReport:  # fmt: skip
    """`check_kernel` in a child process: a crash or a hang there is a failure of the kernel, and no more than that.

    The worker is replaced after a kernel that failed: it may have written where it should not.
    """
    payload = {"op": op.name, "kernel": kernel.name, "matrix": matrix_payload(matrix), "device": device, "config": config, "limit": limit}
    outcome = worker.run(CHECK, payload, timeout_s)
    if outcome.value is not None:
        report = report_from(outcome.value)
        if report.failures:
            worker.close()
        return report
    reason = "\n".join(filter(None, (outcome.reason, outcome.log[-2000:])))
    if outcome.status is Status.UNSUPPORTED:
        return CheckReport(op.name, kernel.name, device, 0, (), len(matrix.points), reason=reason)
    worker.close()
    failure = CaseResult(f"matrix {matrix.name}", outcome.status, reason)
    return CheckReport(op.name, kernel.name, device, 1, (failure,), 0, seconds=outcome.seconds)


def matrix_payload(matrix: Matrix) -> dict[str, Any]:
    """A matrix as JSON."""
    return {"name": matrix.name, "points": [point_payload(point) for point in matrix.points]}


def point_payload(point: Point) -> list[Any]:
    """A point as JSON."""
    return [list(point.dims), point.dtype, point.layout, [list(pair) for pair in point.statics]]


def matrix_from(op: Op, value: Any, device: str) -> Matrix:
    """The matrix that `matrix_payload` wrote, or the op's own of that name."""
    if isinstance(value, str):
        return op.matrix(value, device)
    return Matrix(value["name"], op.name, tuple(_point(point) for point in value["points"]))


def _point(value: list[Any]) -> Point:
    dims, dtype, layout, statics = value
    return Point(tuple(dims), dtype, layout, tuple((name, scalar) for name, scalar in statics))
