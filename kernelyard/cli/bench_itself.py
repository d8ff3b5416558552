"""`bench --against-itself`: one kernel under two names, many times over. Where nothing differs, an interval has to say so."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from kernelyard.cli.bench_rows import item_of
from kernelyard.cli.output import command_line, emit, say
from kernelyard.errors import MeasurementFailed, Unsupported, UsageError

if TYPE_CHECKING:
    from kernelyard.measure.series import Series
    from kernelyard.measure.stats import Interval
    from kernelyard.registry.op import Matrix, Op
    from kernelyard.registry.registry import Registry
    from kernelyard.registry.spec import Workload
    from kernelyard.tuner.bench import Bench, Item

HELD = 0.95
"""The share of 95% intervals that has to contain 1.0."""


def bench_itself(
    everything: Registry, op: Op, names: Sequence[str], matrix: Matrix, device: str, *,
    seconds: float, repeat: int, save: str | None, as_json: bool,
) -> int:  # fmt: skip
    """The kernel on the first point of the matrix, measured `repeat` times for `seconds` each; 0 where 95% of the intervals hold 1.0."""
    from kernelyard.measure.series import against_itself
    from kernelyard.tuner.bench import Bench
    from kernelyard.tuner.limits import Limits
    from kernelyard.verify.isolation import Worker

    if len(names) != 1:
        raise UsageError("--against-itself times one kernel.", do="Name it: --kernel NAME.")
    workload = op.workload(matrix.points[0], device)
    with Worker() as worker:
        ratios = _ratios(Bench(worker, Limits()), everything, op, names[0], workload, seconds, repeat)
    series = against_itself(ratios)
    if save:
        say(f"saved {_save(save, names[0], workload, ratios, series)}")
    if as_json:
        found = [ratio and {"median": ratio.median, "low": ratio.low, "high": ratio.high} for ratio in ratios]
        emit({"op": op.name, "kernel": names[0], "workload": workload.label(), **asdict(series), "share": series.share, "ratios": found})
    else:
        print(_sentence(names[0], workload, series))
    return 0 if series.share >= HELD else 1


def _ratios(
    runner: Bench, everything: Registry, op: Op, name: str, workload: Workload, seconds: float, repeat: int
) -> list[Interval | None]:
    from kernelyard.registry.spec import Status
    from kernelyard.tuner.bench import Result

    item = _item(everything, op, name, workload)
    checked = runner.prepare(item)
    if checked.status is not Status.OK:
        raise MeasurementFailed(f"{name} on {workload.label()} is not timed: {checked.status}: {checked.reason}")
    ratios: list[Interval | None] = []
    for run in range(repeat):
        found = runner.against_itself(item, {"budget_s": seconds, "seed": run})
        if isinstance(found, Result):
            raise MeasurementFailed(f"{name} could not be timed in run {run + 1}: {found.reason}")
        ratios.append(found)
        held = sum(ratio is not None and ratio.contains(1.0) for ratio in ratios)
        say(f"[{run + 1}/{repeat}] {held} of {run + 1} intervals contain 1.0")
    return ratios


def _item(everything: Registry, op: Op, name: str, workload: Workload) -> Item:
    from kernelyard.registry.dispatch import as_pinned

    kernel = everything.kernel(op.name, name)
    answer, config = as_pinned(op, kernel, workload)
    if not answer:
        raise Unsupported(f"{name} can't run {workload.label()}: {answer.reason}.")
    return item_of(kernel, config, workload)


def _sentence(name: str, workload: Workload, series: Series) -> str:
    told = f"{name} against itself on {workload.label()}: {series.holding} of {series.runs} intervals contain 1.0"
    if series.median_ratio is None:
        return f"{told}; no time could be told from nothing"
    return f"{told}; median ratio {series.median_ratio:.4f}, intervals {series.median_width:.2%} wide (median), {series.widest:.2%} at most"


def _save(name: str, kernel: str, workload: Workload, ratios: Sequence[Interval | None], series: Series) -> Any:
    from kernelyard.registry.machine import identity
    from kernelyard.store.results import heading, save_experiment

    rows = [
        {"op": workload.op, "workload": workload.label(), "kernel": kernel, "run": run} | (asdict(ratio) if ratio else {})
        for run, ratio in enumerate(ratios)
    ]
    where = identity(workload.device)
    note = f"{heading(name, command_line(), where)}\n{_sentence(kernel, workload, series)}.\n"
    return save_experiment(name, rows, device=where, command=command_line(), note=note, extra={"series": asdict(series)})
