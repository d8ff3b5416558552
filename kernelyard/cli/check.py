"""`check OP`: is every kernel of an op right, on the frozen correctness matrix? With --sanitize, under NVIDIA's compute-sanitizer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from kernelyard.cli.output import Seconds, device_option, dtype_option, emit, json_option, matrix_option, say, shape_option

if TYPE_CHECKING:
    from kernelyard.cli.found import Found
    from kernelyard.registry.kernel import Kernel
    from kernelyard.registry.op import Matrix
    from kernelyard.registry.registry import Registry
    from kernelyard.verify.isolation import Worker
    from kernelyard.verify.outcome import CheckReport

SLOW_BUILDS_POINTS = 12
"""Of the matrix, evenly spread: torch.compile takes 3 to 10 s for each on two cores."""
MOST_SHOWN = 5
"""Failures that are printed for a kernel; --json has all."""


def _tools(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[str, ...]:
    if value is None:
        return ()
    from kernelyard.verify.sanitizer import TOOLS

    words = tuple(word.strip() for word in value.split(","))
    if unknown := [word for word in words if word not in TOOLS]:
        known = f"there are {', '.join(TOOLS)}. The option goes after OP: check rmsnorm --sanitize"
        raise click.BadParameter(f"no tool '{unknown[0]}'; {known}", ctx, param)
    return words


@click.command(epilog="Examples: kernelyard check rmsnorm --kernel cpp.onepass; kernelyard check rmsnorm --kernel triton.row --sanitize")
@click.argument("op")
@click.option("--kernel", "kernels", multiple=True, help="Only this kernel; may be given again.")
@shape_option("7x129")
@dtype_option
@matrix_option
@click.option("--full", is_flag=True, help="Every point, also for kernels that take seconds to build each (torch.compile).")
@click.option(
    "--sanitize", "tools", is_flag=False, flag_value="memcheck,racecheck,initcheck", callback=_tools, metavar="[TOOLS]",
    help="Run kernels on a few small points under compute-sanitizer instead: memcheck, racecheck, initcheck, or some of them. CUDA only.",
)  # fmt: skip
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
    tools: tuple[str, ...],
    timeout_s: float,
    device: str | None,
    as_json: bool,
) -> int:
    """Compare every kernel of OP with the op's reference, each in a process of its own.

    Shapes, dtypes and layouts are those of the correctness matrix, with edge values (zeros, infinities, NaN, denormals, ...);
    outputs are poisoned and guarded. A failure gets an id, for `kernelyard repro`. Exit code 1 when a kernel fails.
    """
    from kernelyard.cli.found import keep, writable_home
    from kernelyard.cli.workloads import matrices
    from kernelyard.registry import registry
    from kernelyard.registry.machine import check_device
    from kernelyard.verify.isolation import Worker

    device, table = check_device(device), registry.current()
    chosen = matrices(table, [op], device=device, matrix=matrix, shapes=shapes, dtype=dtype, default="correctness")[0]
    asked = [table.kernel(op, name) for name in kernels] or table.kernels(op)
    if tools:
        from kernelyard.cli.sanitize import sanitize

        return sanitize(table.op(op), asked, chosen, device, tools, timeout_s, as_json=as_json, explicit=bool(kernels))
    found = []
    with writable_home() as environment, Worker(environment) as worker:
        for kernel in asked:
            found.append(_checked(worker, table, kernel, chosen, device, full=full, timeout_s=timeout_s))
            if as_json:
                say(_headline(found[-1].report))
            else:
                _show(found[-1])
    keep(found)
    if as_json:
        emit(_content(op, found, chosen, device))
    elif id := next((one.id for each in found for one in each.failures if one is not None), ""):
        print(f"kernelyard repro {id} writes the smallest script that shows it")
    return verdict([one.report for one in found], explicit=bool(kernels))


def _checked(
    worker: Worker, table: Registry, kernel: Kernel, matrix: Matrix, device: str, *, full: bool, timeout_s: float
) -> Found:
    from kernelyard.cli.found import found_in
    from kernelyard.cli.proofs import record
    from kernelyard.cli.watching import Watching
    from kernelyard.verify.jobs import check_located

    say(f"{kernel.name}: checking")
    limit = SLOW_BUILDS_POINTS if table.backend(kernel.backend).slow_builds and not full else None
    watching = Watching(kernel.name)
    op = table.op(kernel.op)
    checked = check_located(worker, op, kernel, matrix, device, limit=limit, timeout_s=timeout_s, seen=watching.seen)
    watching.close()
    record(checked.report, matrix, table)
    if limit is not None and limit < len(matrix.points):
        say(f"{kernel.name}: {limit} of {len(matrix.points)} points, because each takes seconds to build; --full checks all")
    return found_in(checked, table, kernel)


def _content(op: str, found: list[Found], matrix: Matrix, device: str) -> dict[str, Any]:
    reports = [one.report for one in found]
    return {
        "op": op,
        "kernel": ", ".join(report.kernel for report in reports),
        "cases": sum(report.cases for report in reports),
        "failures": [row for one in found for row in one.rows()],
        "device": device,
        "matrix": {"name": matrix.name, "hash": matrix.hash},
        "kernels": [{**one.report.as_dict(), "failures": one.rows()} for one in found],
    }


def _headline(report: CheckReport) -> str:
    if not report.cases:
        return f"{report.kernel}: can't be checked here: {report.reason}"
    outside = f", {report.unsupported} points outside its support" if report.unsupported else ""
    outcome = "right" if report.ok else f"{len(report.failures)} failed"
    return f"{report.kernel}: {report.cases} cases{outside}: {outcome} ({report.seconds:.1f} s)"


def _show(found: Found) -> None:
    """The first few failures; those that say the same are one line."""
    print(_headline(found.report))
    alike: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for failure, kept in zip(found.report.failures, found.failures, strict=True):
        alike.setdefault((failure.status, failure.reason), []).append((kept.id if kept else " " * 8, failure.case))
    for (status, reason), cases in list(alike.items())[:MOST_SHOWN]:
        more = f" and {len(cases) - 1} more cases" if len(cases) > 1 else ""
        print(f"  {cases[0][0]}  {status} at {cases[0][1]}{more}: {reason}")
    if len(alike) > MOST_SHOWN:
        print(f"  and {sum(map(len, list(alike.values())[MOST_SHOWN:]))} more; --json lists them all")


def verdict(reports: list[CheckReport], *, explicit: bool) -> int:
    """1 where a kernel is wrong, where nothing could be checked, or where one that was named could not."""
    if any(report.failures for report in reports) or not any(report.ok for report in reports):
        return 1
    return 1 if explicit and not all(report.ok for report in reports) else 0
