"""Jobs for a `Worker`: dicts in, dicts out, nothing shared."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from kernelyard.errors import BuildFailed, Unsupported
from kernelyard.registry import registry
from kernelyard.registry.backend import Executable
from kernelyard.registry.kernel import Kernel
from kernelyard.registry.matrix import point_from, point_payload
from kernelyard.registry.op import Matrix, Op
from kernelyard.registry.spec import Config, Status, Workload
from kernelyard.verify import memory
from kernelyard.verify.check import Case, build_case, check_kernel
from kernelyard.verify.defences import ALL
from kernelyard.verify.isolation import Worker
from kernelyard.verify.journal import Reader, Seen, Where, Writer, journal
from kernelyard.verify.oracle import case_name, check_workload
from kernelyard.verify.outcome import CaseResult, CheckReport, report_from
from kernelyard.verify.plain import with_values

CHECK, CHECK_CASE = "kernelyard.verify.jobs:check_job", "kernelyard.verify.jobs:case_job"


@dataclass(frozen=True)
class Checked:
    """A report, and where each of its failures was, in the same order; None for one that belongs to no case."""

    report: CheckReport
    where: tuple[Where | None, ...]


def check_job(payload: dict[str, Any]) -> dict[str, Any]:
    """{op, kernel, matrix, device, config, limit, journal} -> a `CheckReport` as a dict, and `where` its failures were.

    `matrix` is a name, or {"name", "points": [[dims, dtype, layout, statics], ...]} from `matrix_payload`. `journal` is a
    file for `journal.Writer`.
    """
    table, device = registry.current(), payload["device"]
    op, kernel = table.op(payload["op"]), table.kernel(payload["op"], payload["kernel"])
    matrix = matrix_from(op, payload["matrix"], device)
    writer = Writer(op, {op.workload(p, device): p for p in matrix.points}, Path(payload["journal"]) if payload.get("journal") else None)
    can_run = bool(table.can_run(kernel, device, "check"))
    report = check_kernel(
        op, kernel, matrix, device, config=payload.get("config"), limit=payload.get("limit"),
        progress=writer.progress, build=writer.building(build) if can_run else None,
    )  # fmt: skip
    where: list[Where | None] = [*writer.failures, *[writer.at] * len(report.failures)]
    return {**report.as_dict(), "where": [one and one.as_list() for one in where[: len(report.failures)]]}


def case_job(payload: dict[str, Any]) -> dict[str, Any]:
    """{op, kernel, point, device, config, edge, seed, values} -> a `CaseResult` as a dict: one workload, one kind of values.

    `values` names plain values for some of the tensors (`plain.KINDS`). The edge 'memory' asks whether calls give it back.
    """
    table, device = registry.current(), payload["device"]
    op, kernel = table.op(payload["op"]), table.kernel(payload["op"], payload["kernel"])
    if not (answer := table.can_run(kernel, device, "check")):
        raise Unsupported(f"{kernel.name} can't be checked here: {answer.reason}")
    case = Case(op.workload(point_from(payload["point"]), device), payload.get("edge", "random"))
    seed = payload.get("seed", 0)
    return asdict(run_case(with_values(op, payload.get("values", {}), seed), kernel, case, payload.get("config"), device, seed))


def run_case(op: Op, kernel: Kernel, case: Case, config: Config | None, device: str, seed: int) -> CaseResult:
    """Builds the kernel and checks it on one case, here."""
    built = build_case(kernel, build, case, config, ALL)
    if isinstance(built, CaseResult):
        return built
    if case.edge != "memory":
        return check_workload(op, kernel, built, case.workload, device=torch.device(device), seed=seed, edge=case.edge)
    words = memory.leak(op, built, case.workload, torch.device(device))
    return CaseResult(case_name(case.workload, case.edge), Status.WRONG if words else Status.OK, words)


def build(kernel: Kernel, workload: Workload, config: Config) -> Executable:
    """The registry's build, where an entry that names nothing is said in a sentence and not by a traceback."""
    try:
        return registry.current().build(kernel, workload, config)
    except BuildFailed as error:
        if missing := _missing(kernel.entry):
            raise BuildFailed(f"{kernel.name} has no code: its entry '{kernel.entry}' names nothing: {missing}.") from error
        raise


def _missing(entry: str) -> str:
    """What the entry names and does not exist; empty where it does, or where its module fails for a reason of its own."""
    name, _, attribute = entry.partition(":")
    try:
        found: Any = importlib.import_module(name)
    except ModuleNotFoundError as error:
        return f"there is no module '{error.name}'" if error.name and f"{name}.".startswith(f"{error.name}.") else ""
    except Exception:  # its module exists; what it raises is in the build's own words
        return ""
    for part in attribute.split("."):
        if not hasattr(found, part):
            return f"module '{name}' has no '{attribute}'"
        found = getattr(found, part)
    return ""


def check_isolated(
    worker: Worker, op: Op, kernel: Kernel, matrix: Matrix, device: str, *,
    config: Config | None = None, limit: int | None = None, timeout_s: float = 600.0,
) -> CheckReport:  # fmt: skip
    """`check_kernel` in a child process: a crash or a hang there is a failure of the kernel, and no more than that."""
    return check_located(worker, op, kernel, matrix, device, config=config, limit=limit, timeout_s=timeout_s).report


def check_located(
    worker: Worker, op: Op, kernel: Kernel, matrix: Matrix, device: str, *,
    config: Config | None = None, limit: int | None = None, timeout_s: float = 600.0, seen: Seen | None = None,
) -> Checked:  # fmt: skip
    """`check_isolated`, with where each failure was. `seen(done, total)` is called from another thread while it runs.

    The worker is replaced after a kernel that failed: it may have written where it should not.
    """
    payload = {"op": op.name, "kernel": kernel.name, "matrix": matrix_payload(matrix), "device": device, "config": config, "limit": limit}
    with journal(seen) as reader:
        outcome = worker.run(CHECK, {**payload, "journal": str(reader.path)}, timeout_s)
        if outcome.value is not None:
            checked = checked_from(outcome.value)
            if checked.report.failures:
                worker.close()
            return checked
        reason = "\n".join(filter(None, (outcome.reason, outcome.log[-2000:])))
        if outcome.status is Status.UNSUPPORTED:
            return Checked(CheckReport(op.name, kernel.name, device, 0, (), len(matrix.points), reason=reason), ())
        worker.close()
        return _ended(op, kernel, matrix, device, CaseResult(f"matrix {matrix.name}", outcome.status, reason), outcome.seconds, reader)


def _ended(op: Op, kernel: Kernel, matrix: Matrix, device: str, failure: CaseResult, seconds: float, reader: Reader) -> Checked:
    """The check took its process along, or all its time: the case that was begun last is where."""
    where = None if "the checker failed" in failure.reason else reader.last()
    if where is not None:
        failure = replace(failure, case=case_name(op.workload(where.point, device), where.edge))
    done = (reader.done() or (0, 0))[0] + 1
    return Checked(CheckReport(op.name, kernel.name, device, done, (failure,), 0, seconds=seconds), (where,))


def checked_from(value: Mapping[str, Any]) -> Checked:
    """What `check_job` returned."""
    report = report_from({name: field for name, field in value.items() if name != "where"})
    return Checked(report, tuple(one and Where.of(one) for one in value["where"]))


def matrix_payload(matrix: Matrix) -> dict[str, Any]:
    """A matrix as JSON."""
    return {"name": matrix.name, "points": [point_payload(point) for point in matrix.points]}


def matrix_from(op: Op, value: Any, device: str) -> Matrix:
    """The matrix that `matrix_payload` wrote, or the op's own of that name."""
    if isinstance(value, str):
        return op.matrix(value, device)
    return Matrix(value["name"], op.name, tuple(point_from(point) for point in value["points"]))
