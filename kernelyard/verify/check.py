"""A kernel over a whole matrix: every point it declares, typical values at all, edge values at a few small ones."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

import torch

from kernelyard.errors import BuildFailed, Unsupported
from kernelyard.registry import registry
from kernelyard.registry.backend import Executable
from kernelyard.registry.kernel import Kernel
from kernelyard.registry.op import Matrix, Op
from kernelyard.registry.spec import Answer, Config, Status, TensorSpec, Workload
from kernelyard.verify import edges, memory, room, state
from kernelyard.verify.defences import ALL
from kernelyard.verify.oracle import case_name, check_workload
from kernelyard.verify.outcome import CaseResult, CheckReport, checking

Build = Callable[[Kernel, Workload, Config], Executable]
Progress = Callable[[int, int, CaseResult], None]

EDGE_ELEMENTS = (64, 1 << 14)
"""Edge values go to points of this size: rows enough that a clean one stands beside each that is not, and still quick."""


@dataclass(frozen=True, slots=True)
class Case:
    """One workload with one kind of values."""

    workload: Workload
    edge: str


def check_kernel(
    op: Op,
    kernel: Kernel,
    matrix: Matrix,
    device_type: str,
    *,
    config: Config | None = None,
    limit: int | None = None,
    progress: Progress | None = None,
    build: Build | None = None,
    defences: frozenset[str] = ALL,
) -> CheckReport:
    """Checks the kernel in `config` (by default its own for each workload) at the points of the matrix that it supports.

    `limit` caps the points, evenly spread. `progress(done, total, result)` is called after each case. `build` replaces
    the registry's. A kernel that can't run here gives a report with no cases and the reason, which is not ok.
    """
    started = time.monotonic()
    if build is None and not (answer := registry.current().can_run(kernel, device_type, "check")):
        return CheckReport(op.name, kernel.name, device_type, 0, (), len(matrix.points), reason=answer.reason)
    build = build or registry.current().build
    workloads, refusals = supported(op, kernel, _spread(matrix, limit), device_type)
    workloads, crowded = _roomy(op, workloads, torch.device(device_type))
    refusals |= crowded
    cases = list(cases_of(op, workloads, defences))
    if not cases:
        why = "this machine has no room for any point" if crowded else "no point of the matrix is inside its declared support"
        reason = f"{why}: {'; '.join(list(crowded or refusals)[:3])}"
        return CheckReport(
            op.name, kernel.name, device_type, 0, (), sum(refusals.values()),
            reason=reason, refusals=refusals, no_room=sum(crowded.values()),
        )  # fmt: skip
    results = []
    for case in cases:
        results.append(_check(op, kernel, build, case, config, torch.device(device_type), defences))
        if progress is not None:
            progress(len(results), len(cases), results[-1])
    if "memory" in defences and all(result.ok for result in results):
        results += _leak(op, kernel, build, workloads, config, torch.device(device_type))
    return CheckReport(
        op.name, kernel.name, device_type, len(results), tuple(result for result in results if not result.ok),
        sum(refusals.values()), max(result.max_ulp for result in results), time.monotonic() - started, refusals=refusals,
        norm=max(result.norm for result in results), eager_ulp=_most(r.eager_ulp for r in results),
        eager_norm=_most(r.eager_norm for r in results), no_room=sum(crowded.values()),
    )  # fmt: skip


def _most(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def _roomy(op: Op, workloads: Iterable[Workload], device: torch.device) -> tuple[list[Workload], dict[str, int]]:
    """The workloads that there is memory for, and how many points each reason leaves out."""
    fitting, crowded = [], Counter[str]()
    with checking("the estimate of the memory it needs"):
        for workload in workloads:
            if answer := room.enough(op, workload, device):
                fitting.append(workload)
            else:
                crowded[answer.reason] += 1
    return fitting, dict(crowded)


def fits(kernel: Kernel, workload: Workload) -> Answer:
    """Whether the declared support has this workload. A kernel for another device, checked here by emulation
    (Triton's interpreter), is asked about the device it declares."""
    device = workload.device if workload.device in kernel.support.devices else kernel.support.devices[0]
    return kernel.support.fits(replace(workload, device=device))


def supported(op: Op, kernel: Kernel, matrix: Matrix, device_type: str) -> tuple[list[Workload], dict[str, int]]:
    """The workloads that the kernel declares, and how many points each reason leaves out."""
    workloads, refusals = [], Counter[str]()
    for point in matrix.points:
        workload = op.workload(point, device_type)
        if answer := fits(kernel, workload):
            workloads.append(workload)
        else:
            refusals[answer.reason] += 1
    return workloads, dict(refusals)


def cases_of(op: Op, workloads: list[Workload], defences: frozenset[str] = ALL) -> Iterator[Case]:
    """Typical values everywhere; edge values, in each dtype, at a point with a ragged tail and at one without."""
    yield from (Case(workload, "random") for workload in workloads)
    if "edges" in defences:
        for workload in _edge_workloads(workloads):
            yield from (Case(workload, edge) for edge in dict.fromkeys((*edges.ALWAYS, *op.edges)))


def _edge_workloads(workloads: list[Workload]) -> Iterator[Workload]:
    least, most = EDGE_ELEMENTS
    plain = [w for w in workloads if all(spec is None or (spec.contiguous and spec.aligned) for _, spec in w.tensors)]
    for dtype in dict.fromkeys(w.dtype for w in plain):
        fitting = [w for w in plain if w.dtype == dtype and least <= _first(w).numel <= most and min(_first(w).shape[:-1], default=3) > 2]
        ragged = [w for w in fitting if _first(w).shape[-1] % 8]
        even = [w for w in fitting if _first(w).shape[-1] % 8 == 0]
        others = [w for w in plain if w.dtype == dtype and _first(w).numel]
        yield from (choice[-1] for choice in (ragged, even, others if not fitting else []) if choice)


def _first(workload: Workload) -> TensorSpec:
    return next(spec for _, spec in workload.tensors if spec is not None)


def _spread(matrix: Matrix, limit: int | None) -> Matrix:
    count = len(matrix.points)
    if limit is None or limit >= count:
        return matrix
    return replace(matrix, points=tuple(matrix.points[i * count // limit] for i in range(limit)))


def _check(
    op: Op, kernel: Kernel, build: Build, case: Case, config: Config | None, device: torch.device, defences: frozenset[str]
) -> CaseResult:
    built = build_case(kernel, build, case, config, defences)
    if isinstance(built, CaseResult):
        return built
    return check_workload(op, kernel, built, case.workload, device=device, edge=case.edge, defences=defences)


def build_case(kernel: Kernel, build: Build, case: Case, config: Config | None, defences: frozenset[str]) -> Executable | CaseResult:
    """The built kernel, or why it could not be; a build must leave global state alone too."""
    name = case_name(case.workload, case.edge)
    clocks = state.patched_clocks()
    try:
        built = build(kernel, case.workload, kernel.space.default_for(case.workload) if config is None else config)
    except BuildFailed as error:
        return CaseResult(name, Status.BUILD_FAILED, str(error))
    except Unsupported as error:
        return CaseResult(name, Status.UNSUPPORTED, f"declares support for this workload, then refuses: {error}")
    except Exception as error:  # an entry may raise anything
        return CaseResult(name, Status.CRASHED, f"building it raised {type(error).__name__}: {error}")
    if "clock" in defences and (patched := state.patched_clocks()) != clocks:
        state.restore_clocks()
        return CaseResult(name, Status.WRONG, f"replaced a timer or a synchronisation while it was built: {', '.join(patched)}")
    return built


def _leak(
    op: Op, kernel: Kernel, build: Build, workloads: Iterable[Workload], config: Config | None, device: torch.device
) -> list[CaseResult]:
    """One case more, at the largest point that is not too large: does memory come back?"""
    sized = sorted((w for w in workloads if _first(w).nbytes <= memory.MOST_BYTES), key=lambda w: _first(w).nbytes)
    if not sized:
        return []
    case = Case(sized[-1], "memory")
    before = state.snapshot(device)
    try:
        built = build_case(kernel, build, case, config, ALL)
        words = memory.leak(op, built, case.workload, device) if isinstance(built, Executable) else ""
    finally:
        state.restore(before)
        state.restore_clocks()
    return [CaseResult(case_name(case.workload, "memory"), Status.WRONG if words else Status.OK, words)]
