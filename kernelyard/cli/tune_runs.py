"""What `tune` shows of its reports: tables for people, the result for programs, and what --save keeps."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernelyard.cli.bucket import show_bucket
from kernelyard.cli.output import command_line, config_text, microseconds, ratio, say, table
from kernelyard.cli.tune_watching import result
from kernelyard.errors import MeasurementFailed, Unsupported

if TYPE_CHECKING:
    from kernelyard.cli.tune_watching import Watcher
    from kernelyard.store.results import ResultRow
    from kernelyard.tuner.bucket import Bucket
    from kernelyard.tuner.report import TuneReport, WorkloadReport


class Runs:
    """The reports of a command, one an op and, on a cluster, model of device; what is finished is shown and saved, whatever comes then."""

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
