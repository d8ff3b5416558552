"""`tune OP...`: find the fastest right kernel and config for each frozen workload, and keep the choice."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kernelyard.cli.output import (
    Seconds,
    command_line,
    config_text,
    device_option,
    dtype_option,
    emit,
    json_option,
    matrix_option,
    microseconds,
    ratio,
    save_option,
    say,
    shape_option,
    table,
)
from kernelyard.errors import UsageError

if TYPE_CHECKING:
    from kernelyard.registry.op import Op
    from kernelyard.registry.registry import Registry
    from kernelyard.registry.spec import Workload
    from kernelyard.store.results import ResultRow
    from kernelyard.tuner.progress import Progress
    from kernelyard.tuner.report import TuneReport, WorkloadReport

INSTEAD = "Tune the performance matrix, then run kernelyard bench {} --matrix held_out."


@click.command(epilog="Example: kernelyard tune rmsnorm --shape 16x4096 --dtype fp32")
@click.argument("ops", nargs=-1, metavar="OP...")
@click.option("--all", "every", is_flag=True, help="Every op with a kernel to tune on this device, plugins' included.")
@click.option("--kernel", "kernels", multiple=True, help="Only this kernel (beside the references); may be given again.")
@shape_option("16x4096")
@dtype_option
@matrix_option
@click.option("--trials", type=click.IntRange(min=1), help="Trials for each kernel and workload, at most.")
@click.option("--minutes", type=Seconds(min=0, min_open=True), help="Minutes of search for each kernel and workload, at most.")
@click.option("--patience", type=click.IntRange(min=1), help="End a kernel's search after so many trials without a gain beyond noise.")
@click.option("--sampler", default="tpe", show_default=True, help="tpe, gp, cmaes, random, grid, or hub:package/name of OptunaHub.")
@click.option("--force", is_flag=True, help="Measure anew, whatever is stored.")
@click.option("--storage", metavar="URL", envvar="KERNELYARD_STORAGE", show_envvar=True,
              help="Database of the trials, not the store's own: postgresql://user:password@host/name or sqlite:///file.db")  # fmt: skip
@click.option("--ray", metavar="ADDRESS", help="Tune on the free devices of a Ray cluster: auto, host:port, or local for one here.")
@save_option
@device_option
@json_option
def tune(
    ops: tuple[str, ...],
    every: bool,
    kernels: tuple[str, ...],
    shapes: tuple[str, ...],
    dtype: str | None,
    matrix: str | None,
    trials: int | None,
    minutes: float | None,
    patience: int | None,
    sampler: str,
    force: bool,
    storage: str | None,
    ray: str | None,
    save: str | None,
    device: str | None,
    as_json: bool,
) -> int:
    """Search the kernels of each OP on its frozen performance matrix, or on sizes of your own.

    Without OP, every op of a --matrix FILE. In a file that `kernelyard.capture` wrote, what took most time comes first:
    count x the stored time where every point has one, else count x the bytes of the cost model.

    Every config is built, checked and timed in a process of its own; the best are timed once more against plain and compiled
    torch. What is tuned already is answered from the store; an interrupted run goes on where it was. Of --trials, --minutes and
    --patience the first that is reached ends a search. Exit code 1 when on some workload no config was right.

    With --ray trials run on a cluster, each on a device that it has alone; devices of one model share a search, and each model gets
    its own choices, which are stored here. A node that is lost costs the trials that ran on it; they are tried again on the others.
    """
    from kernelyard.cli.tune_order import ordered
    from kernelyard.cli.workloads import is_file, matrices
    from kernelyard.registry import registry
    from kernelyard.registry.machine import check_device
    from kernelyard.tuner import samplers
    from kernelyard.tuner.tune import tune as run

    samplers.check(sampler)
    device, everything = check_device(device) if ray is None else _device_of(ray, device), registry.current()
    ops = _asked(everything, ops, device, every=every, own_sizes=bool(shapes or kernels), file=is_file(matrix))
    chosen = matrices(everything, ops, device=device, matrix=matrix, shapes=shapes, dtype=dtype, default="performance")
    if any(frozen.held_out for frozen in chosen):
        raise UsageError(f"matrix {chosen[0].name} is held out: what is tuned on it can't be shown on it.", do=INSTEAD.format(chosen[0].op))
    show, reports = _Progress(), []
    in_order, by = ordered(everything, chosen, device)
    if by:
        say(f"most first, by {by}: {', '.join(frozen.op for frozen, _ in in_order)}")
    for frozen, workloads in in_order:
        op = everything.op(frozen.op)
        how: dict[str, Any] = {"kernels": kernels or None, "trials": trials, "force": force, "storage": storage, "matrix": frozen,
                               "command": command_line(), "sampler": sampler}  # fmt: skip
        if ray is not None:
            found = _on_cluster(everything, op, workloads, device, show, how, minutes, patience)
        else:
            found = [run(op, workloads, device, progress=show, minutes=minutes, patience=patience, **how)]
        show.end()
        reports += found
        for report in found if not as_json else ():
            _show(report)
    if save:
        say(f"saved {_save(save, reports)}")
    if as_json:
        emit(reports[0].to_json() if len(reports) == 1 else {"runs": [report.to_json() for report in reports]})
    return 1 if any(report.all_failed for report in reports) else 0


def _device_of(ray: str, wanted: str | None) -> str:
    """The type of device to tune on the cluster, to which this command is connected until it ends."""
    from kernelyard.tuner import cluster

    click.get_current_context().with_resource(cluster.connected(ray))
    return cluster.device_type(wanted)


def _on_cluster(
    everything: Registry, op: Op, workloads: list[Workload], device: str, show: _Progress, how: dict[str, Any], minutes: float | None,
    patience: int | None,
) -> list[TuneReport]:  # fmt: skip
    """A report for each model of device there."""
    from kernelyard.registry.machine import identity
    from kernelyard.tuner import cluster
    from kernelyard.tuner.answers import Asked
    from kernelyard.tuner.ending import Ending
    from kernelyard.tuner.limits import Limits

    asked = Asked(op, everything, identity("cpu"), limits=Limits(), ending=Ending(minutes, patience), **how)
    return cluster.tune(asked, workloads, device, show)


def _asked(everything: Registry, ops: tuple[str, ...], device: str, *, every: bool, own_sizes: bool, file: bool) -> tuple[str, ...]:
    """The ops that were named, none for those of a file, or with --all those of which a kernel other than the references can run here."""
    if every and (ops or own_sizes or file):
        raise UsageError(
            "--all tunes every op on its frozen matrix: it goes with no OP, --shape, --kernel or --matrix FILE.", do="Leave one out."
        )
    if not every:
        if not ops and not file:
            raise UsageError(
                "no op was named.", exists=f"There are: {', '.join(everything.ops)}.", do="Name an OP, or give --all or a --matrix FILE."
            )
        return ops
    from kernelyard.tuner.plan import tunable

    if not (found := tuple(op.name for op in everything.ops.values() if tunable(everything, op, device))):
        raise UsageError(f"no op has a kernel to tune on {device}.", do="kernelyard list says why not.")
    return found


class _Progress:
    """Trials on stderr: one line that is written over on a terminal, a line every few seconds elsewhere."""

    def __init__(self, every_s: float = 5.0) -> None:
        self._every_s, self._last, self._terminal = every_s, 0.0, sys.stderr.isatty()

    def __call__(self, event: Progress) -> None:
        moment = time.monotonic()
        passing = event.stage == "trial"
        if passing and moment - self._last < (0.1 if self._terminal else self._every_s):
            return
        self._last = moment
        if self._terminal:
            sys.stderr.write(f"\r\033[K{_line(event)}" + ("" if passing else "\n"))
            sys.stderr.flush()
        else:
            say(_line(event))

    def end(self) -> None:
        """Clear what is left of a line that was being written over."""
        if self._terminal:
            sys.stderr.write("\r\033[K")


def _line(event: Progress) -> str:
    where = f"[{event.done}/{event.total}] {event.op} {event.workload}"
    best = f"best so far {microseconds(event.best_us)} {event.best_kernel}" if event.best_us is not None else ""
    if event.stage == "trial":
        eta = f"ETA {event.eta_s:.0f} s" if event.eta_s is not None else ""
        counts = " ".join(f"{count} {status}" for status, count in event.counts.items())
        return "; ".join(filter(None, (f"{where}: {event.kernel} {config_text(event.config)}", best, counts, eta)))
    words = {
        "waiting": event.message,
        "cached": "already tuned",
        "finals": f"finals: the best against plain and compiled torch; {best}".rstrip("; "),
        "done": f"{event.kernel} {config_text(event.config)}",
    }
    return f"{where}: {words[event.stage]}"


def _show(report: TuneReport) -> None:
    title = f"{report.op} on {report.device.name}, matrix {report.matrix_name} ({report.matrix_hash[:8]}), run {report.run_id}"
    columns = ("workload", "choice", "config", "median >", "95% interval >", "eager >", "compiled >", "vs eager >", "vs compiled >")
    table(title, columns, [_row(one) for one in report.workloads])
    for one in report.workloads:
        print(f"{one.workload.label()}: {one.choice.reason}" + (" (from the store)" if one.from_cache else ""))
        for kernel, searched in one.evidence.get("searched", {}).items():
            if searched.get("stopped"):
                print(f"{one.workload.label()}: the search of {kernel} ended after {searched['budget']} trials: {searched['stopped']}")


def _row(one: WorkloadReport) -> tuple[object, ...]:
    evidence = one.evidence
    times = evidence["device_time_us"] or {"median": None, "low": None, "high": None}
    interval = f"{microseconds(times['low'])} to {microseconds(times['high'])}"
    ratios = (ratio(evidence["speedup_vs_eager"]), ratio(evidence["speedup_vs_compile"]))
    others = (microseconds(evidence["eager_us"]), microseconds(evidence["compile_us"]))
    return (
        one.workload.label(),
        one.choice.kernel,
        config_text(one.choice.config),
        microseconds(times["median"]),
        interval,
        *others,
        *ratios,
    )


def _save(name: str, reports: list[TuneReport]) -> Path:
    from kernelyard.store.results import heading, save_experiment

    rows = [_result(report, one) for report in reports for one in report.workloads]
    lines = [heading(name, command_line(), reports[0].device)]
    lines += ["| op | workload | choice | us | vs eager | vs compiled | of ceiling |", "| --- | --- | --- | --- | --- | --- | --- |"]
    for row, one in zip(rows, (one for report in reports for one in report.workloads), strict=True):
        ratios = (ratio(one.evidence["speedup_vs_eager"]), ratio(one.evidence["speedup_vs_compile"]))
        share = "n/a" if row.percent_of_ceiling is None else f"{row.percent_of_ceiling:.0f}%"
        lines.append("| " + " | ".join((row.op, row.workload, row.kernel, microseconds(row.device_time_us), *ratios, share)) + " |")
    extra = {"runs": [report.to_json() for report in reports]}
    return save_experiment(name, rows, device=reports[0].device, command=command_line(), note="\n".join(lines) + "\n", extra=extra)


def _result(report: TuneReport, one: WorkloadReport) -> ResultRow:
    from kernelyard.store.results import ResultRow

    evidence: dict[str, Any] = dict(one.evidence)
    times, call = evidence["device_time_us"] or {}, evidence["call_time_us"] or {}
    return ResultRow(
        report.op,
        one.workload.label(),
        one.choice.kernel,
        dict(one.choice.config),
        times.get("median"),
        call.get("median"),
        times.get("low"),
        times.get("high"),
        {name: both["device_us"] for name, both in evidence["baselines"].items()},
        evidence.get("percent_of_ceiling"),
        report.matrix_name,
    )
