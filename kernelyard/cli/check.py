"""`check OP`: is every kernel of an op right, on the frozen correctness matrix?"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from kernelyard.cli.output import Seconds, device_option, dtype_option, emit, json_option, matrix_option, say, shape_option

if TYPE_CHECKING:
    from kernelyard.verify.outcome import CheckReport


SLOW_BUILDS_POINTS = 12
"""Of the matrix, evenly spread: torch.compile takes 3 to 10 s for each on two cores."""


@click.command(epilog="Example: kernelyard check rmsnorm --kernel cpp.onepass")
@click.argument("op")
@click.option("--kernel", "kernels", multiple=True, help="Only this kernel; may be given again.")
@shape_option("7x129")
@dtype_option
@matrix_option
@click.option("--full", is_flag=True, help="Every point, also for kernels that take seconds to build each (torch.compile).")
@click.option("--timeout", "timeout_s", type=Seconds(min=1), default=1800, show_default=True, help="Seconds for each kernel.")
@device_option
@json_option
def check(
    op: str,
    kernels: tuple[str, ...],
    shapes: tuple[str, ...],
    dtype: str | None,
    matrix: str | None,
    full: bool,
    timeout_s: float,
    device: str | None,
    as_json: bool,
) -> int:
    """Compare every kernel of OP with the op's reference, each in a process of its own.

    Shapes, dtypes and layouts are those of the correctness matrix, with edge values (zeros, infinities, NaN, denormals, ...);
    outputs are poisoned and guarded. Exit code 1 when a kernel fails.
    """
    from kernelyard.cli.workloads import matrices
    from kernelyard.registry import registry
    from kernelyard.registry.home import home
    from kernelyard.registry.machine import check_device
    from kernelyard.verify.isolation import Worker
    from kernelyard.verify.jobs import check_isolated

    device, everything = check_device(device), registry.current()
    home()  # builds go there: say now that they can't, not once a case
    chosen = matrices(everything, [op], device=device, matrix=matrix, shapes=shapes, dtype=dtype, default="correctness")[0]
    names = [everything.kernel(op, name).name for name in kernels] or [kernel.name for kernel in everything.kernels(op)]
    reports = []
    with Worker() as worker:
        for name in names:
            kernel = everything.kernel(op, name)
            say(f"{name}: checking")
            limit = SLOW_BUILDS_POINTS if everything.backend(kernel.backend).slow_builds and not full else None
            report = check_isolated(worker, everything.op(op), kernel, chosen, device, limit=limit, timeout_s=timeout_s)
            reports.append(report)
            if as_json:
                say(_headline(report))
            else:
                _show(report)
            if limit is not None and limit < len(chosen.points):
                say(f"{name}: {limit} of {len(chosen.points)} points, because each takes seconds to build; --full checks all")
    if as_json:
        failures = [asdict(failure) for report in reports for failure in report.failures]
        content = {"op": op, "kernel": ", ".join(names), "cases": sum(report.cases for report in reports), "failures": failures}
        frozen = {"name": chosen.name, "hash": chosen.hash}
        emit({**content, "device": device, "matrix": frozen, "kernels": [report.as_dict() for report in reports]})
    return _verdict(reports, explicit=bool(kernels))


def _headline(report: CheckReport) -> str:
    if not report.cases:
        return f"{report.kernel}: can't be checked here: {report.reason}"
    outside = f", {report.unsupported} points outside its support" if report.unsupported else ""
    verdict = "right" if report.ok else f"{len(report.failures)} failed"
    return f"{report.kernel}: {report.cases} cases{outside}: {verdict} ({report.seconds:.1f} s)"


def _show(report: CheckReport, most: int = 5) -> None:
    print(_headline(report))
    for failure in report.failures[:most]:
        print(f"  {failure.status} at {failure.case}: {failure.reason}")
    if len(report.failures) > most:
        print(f"  and {len(report.failures) - most} more; --json lists them all")


def _verdict(reports: list[CheckReport], *, explicit: bool) -> int:
    """1 where a kernel is wrong, where nothing could be checked, or where one that was named could not."""
    if any(report.failures for report in reports) or not any(report.ok for report in reports):
        return 1
    return 1 if explicit and not all(report.ok for report in reports) else 0
