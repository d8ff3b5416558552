"""`tune OP...`: find the fastest right kernel and config for each frozen workload, and keep the choice."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kernelyard.cli.bucket import Percent, check_shapes, find_rule, refuse_alone, show_bucket
from kernelyard.cli.output import (
    Seconds,
    command_line,
    config_text,
    device_option,
    dtype_option,
    matrix_option,
    microseconds,
    ratio,
    save_option,
    say,
    shape_option,
    table,
)
from kernelyard.cli.tune_watching import result
from kernelyard.errors import MeasurementFailed, Unsupported, UsageError

if TYPE_CHECKING:
    from kernelyard.cli.tune_watching import Watcher
    from kernelyard.registry.registry import Registry
    from kernelyard.store.results import ResultRow
    from kernelyard.tuner.bucket import Bucket
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
@click.option("--bucket", type=Percent(), is_flag=False, flag_value="5%", metavar="[X%]", help="Then find the fewest pairs of kernel and "
              "config within X% (5%) of each workload's best, and keep a rule for other shapes.")  # fmt: skip
@click.option("--held-out", is_flag=True, help="With --bucket: what its rule loses on the op's held_out matrix.")
@click.option("--force", is_flag=True, help="Measure anew, whatever is stored.")
@click.option("--storage", metavar="URL", help="Database of the trials, instead of the store's own file.")
@save_option
@device_option
@click.option("--quiet", is_flag=True, help="Print the result and nothing else; problems still go to stderr.")
@click.option("--json", "as_json", is_flag=True, help="Print events as JSON, one a line, on stderr, and the last, the result, on stdout.")
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
    bucket: float | None,
    held_out: bool,
    force: bool,
    storage: str | None,
    save: str | None,
    device: str | None,
    quiet: bool,
    as_json: bool,
) -> int:
    """Search the kernels of each OP on its frozen performance matrix, or on sizes of your own.

    Without OP, every op of a --matrix FILE. In a file that `kernelyard.capture` wrote, what took most time comes first:
    count x the stored time where every point has one, else count x the bytes of the cost model.

    Every config is built, checked and timed in a process of its own; the best are timed once more against plain and compiled
    torch. What is tuned already is answered from the store; an interrupted run goes on where it was. Of --trials, --minutes and
    --patience the first that is reached ends a search. Ctrl-C once ends it with the best so far stored, twice at once. Exit code 1
    when on some workload no config was right, or when a bucket's rule was slower than what serves without one.
    """
    from kernelyard.cli.interrupting import twice
    from kernelyard.cli.tune_order import ordered
    from kernelyard.cli.tune_watching import told, watcher
    from kernelyard.cli.workloads import is_file, matrices
    from kernelyard.registry import registry
    from kernelyard.registry.machine import check_device, identity
    from kernelyard.tuner import samplers
    from kernelyard.tuner.answers import Asked
    from kernelyard.tuner.ending import Ending
    from kernelyard.tuner.limits import Limits
    from kernelyard.tuner.tune import tune as run

    with told(as_json=as_json), twice():
        samplers.check(sampler)
        refuse_alone(bucket, held_out)
        device, everything = check_device(device), registry.current()
        ops = _asked(everything, ops, device, every=every, own_sizes=bool(shapes or kernels), file=is_file(matrix))
        chosen = matrices(everything, ops, device=device, matrix=matrix, shapes=shapes, dtype=dtype, default="performance")
        if any(frozen.held_out for frozen in chosen):
            why = f"matrix {chosen[0].name} is held out: what is tuned on it can't be shown on it."
            raise UsageError(why, do=INSTEAD.format(chosen[0].op))
        if bucket is not None:
            check_shapes([(everything.op(frozen.op), frozen) for frozen in chosen], device, held_out=held_out)
        in_order, by = ordered(everything, chosen, device)
        watching = watcher(quiet=quiet, as_json=as_json)
        if by:
            watching.note(f"most first, by {by}: {', '.join(frozen.op for frozen, _ in in_order)}")
        runs = Runs(watching, as_json=as_json, several=len(in_order) > 1, save=save)
        for frozen, workloads in in_order:
            op = everything.op(frozen.op)
            with runs.one():
                report = run(op, workloads, device, kernels=kernels or None, trials=trials, force=force, storage=storage, matrix=frozen,
                             progress=watching, command=command_line(), sampler=sampler, minutes=minutes, patience=patience)  # fmt: skip
                runs.add(report)
                if bucket is not None:
                    asked = Asked(op, everything, identity(device), kernels or None, trials, force, storage, frozen, command_line(),
                                  Limits(), sampler, Ending(minutes, patience))  # fmt: skip
                    runs.add_bucket(find_rule(asked, report, bucket, watching.note, held_out=held_out))
        return runs.end()


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


class Runs:
    """The reports of a command, one an op; what is finished is shown and saved, whatever becomes of the rest."""

    def __init__(self, watching: Watcher, *, as_json: bool, several: bool, save: str | None) -> None:
        self._watching, self._as_json, self._several, self._save = watching, as_json, several, save
        self._reports: list[TuneReport] = []
        self._buckets: list[Bucket] = []
        self._failed: list[str] = []

    @contextmanager
    def one(self) -> Iterator[None]:
        """One op's run. What can't be measured is told, and the next op's turn; Ctrl-C ends all, with what there is."""
        from kernelyard.tuner.report import Stopped

        try:
            yield
        except (Stopped, KeyboardInterrupt) as stop:
            self._watching.close()
            if isinstance(stop, Stopped) and stop.report.workloads:
                self.add(stop.report)
            self.end(interrupted=True)
            raise
        except (MeasurementFailed, Unsupported) as error:
            self._failed.append(str(error))
            self._watching.close()
            say(f"kernelyard: {error}")

    def add(self, report: TuneReport) -> None:
        """Keep one, and show it."""
        self._reports.append(report)
        self._watching.close()
        if not self._as_json:
            _show(report)

    def add_bucket(self, bucket: Bucket) -> None:
        """Keep what was found of the last op's matrix as a whole, and show it."""
        self._buckets.append(bucket)
        self._watching.close()
        if not self._as_json:
            show_bucket(bucket)

    def end(self, *, interrupted: bool = False) -> int:
        """Save, and print the JSON; the exit code."""
        if self._save and self._reports:
            self._watching.note(f"saved {_save(self._save, self._reports)}")
        if self._as_json:
            result(self._reports, self._failed, self._buckets, several=self._several, interrupted=interrupted)
        failed = self._failed or any(report.all_failed for report in self._reports)
        return 1 if failed or not all(made.kept for made in self._buckets) else 0


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
