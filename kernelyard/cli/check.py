"""`check OP`: is every kernel of an op right, on the frozen correctness matrix?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from kernelyard.cli.output import device_option, dtype_option, emit, json_option, matrix_option, say, shape_option

if TYPE_CHECKING:
    from kernelyard.registry.op import Matrix


@click.command(epilog="Example: kernelyard check rmsnorm --kernel cpp.onepass")
@click.argument("op")
@click.option("--kernel", "kernels", multiple=True, help="Only this kernel; may be given again.")
@shape_option("7x129")
@dtype_option
@matrix_option
@click.option("--timeout", "timeout_s", type=click.FloatRange(min=1), default=1800, show_default=True, help="Seconds for each kernel.")
@device_option
@json_option
def check(
    op: str,
    kernels: tuple[str, ...],
    shapes: tuple[str, ...],
    dtype: str | None,
    matrix: str | None,
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
    from kernelyard.registry.machine import check_device

    device, everything = check_device(device), registry.current()
    chosen = matrices(everything, [op], device=device, matrix=matrix, shapes=shapes, dtype=dtype, default="correctness")[0]
    names = [everything.kernel(op, name).name for name in kernels] or [kernel.name for kernel in everything.kernels(op)]
    reports: list[dict[str, Any]] = []
    for name in names:
        answer = everything.can_run(everything.kernel(op, name), device, "check")
        if not answer:
            say(f"{name}: can't be checked here: {answer.reason}")
            reports.append({"op": op, "kernel": name, "cases": 0, "status": "unsupported", "reason": answer.reason, "failures": []})
            continue
        reports.append(_check_one(op, name, chosen, device, timeout_s, as_json))
    if as_json:
        first = reports[0] if len(reports) == 1 else {"op": op, "kernel": ", ".join(names), "cases": sum(r["cases"] for r in reports),
                                                      "failures": [f for r in reports for f in r["failures"]]}  # fmt: skip
        emit({**first, "device": device, "matrix": {"name": chosen.name, "hash": chosen.hash}, "kernels": reports})
    return _verdict(reports, explicit=bool(kernels))


def _check_one(op: str, kernel: str, matrix: Matrix, device: str, timeout_s: float, quiet: bool) -> dict[str, Any]:
    """Check one kernel in a worker; a crash or a hang is a failure of the kernel, with what it printed last."""
    from kernelyard.verify.isolation import Worker

    points = [[list(point.dims), point.dtype, point.layout, [list(pair) for pair in point.statics]] for point in matrix.points]
    payload = {"op": op, "kernel": kernel, "matrix": matrix.name, "points": points, "device": device}
    with Worker() as worker:
        outcome = worker.run("kernelyard.verify.jobs:check_job", payload, timeout_s)
    if outcome.value is None:
        failure = {"case": "the whole run", "status": str(outcome.status), "reason": outcome.reason}
        report: dict[str, Any] = {"op": op, "kernel": kernel, "cases": 0, "failures": [failure]}
    else:
        report = dict(outcome.value)
    report["status"] = report["failures"][0]["status"] if report["failures"] else "ok"
    report["seconds"] = round(outcome.seconds, 2)
    if not quiet:
        _show(report)
    return report


def _show(report: dict[str, Any], most: int = 5) -> None:
    failures = report["failures"]
    unsupported = f", {report['unsupported']} outside its support" if report.get("unsupported") else ""
    verdict = "right" if not failures else f"{len(failures)} failed"
    print(f"{report['kernel']}: {report['cases']} cases{unsupported}: {verdict} ({report['seconds']:.1f} s)")
    for failure in failures[:most]:
        print(f"  {failure['status']} at {failure['case']}: {failure['reason']}")
    if len(failures) > most:
        print(f"  and {len(failures) - most} more; --json lists them all")


def _verdict(reports: list[dict[str, Any]], *, explicit: bool) -> int:
    """1 where a kernel is wrong, or where what was asked for by name could not be checked."""
    if any(report["status"] not in ("ok", "unsupported") for report in reports):
        return 1
    nothing = all(report["status"] == "unsupported" for report in reports)
    return 1 if nothing or (explicit and any(report["status"] == "unsupported" for report in reports)) else 0
