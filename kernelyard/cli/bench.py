"""`bench OP`: every kernel of an op side by side on the same workloads, as dispatch would run each."""

from __future__ import annotations

from collections.abc import Sequence
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
    save_option,
    say,
    shape_option,
    table,
)

if TYPE_CHECKING:
    from kernelyard.registry.kernel import Kernel
    from kernelyard.registry.op import Op
    from kernelyard.registry.registry import Registry
    from kernelyard.registry.spec import Config, Workload
    from kernelyard.tuner.bench import Bench, Item


@click.command(epilog="Example: kernelyard bench rmsnorm --shape 512x4096 --kernel cpp.onepass")
@click.argument("op")
@click.option("--kernel", "kernels", multiple=True, help="Only this kernel (beside plain torch); may be given again.")
@shape_option("512x4096")
@dtype_option
@matrix_option
@click.option("--seconds", type=Seconds(min=0.1), default=2.0, show_default=True, help="Time for the batches of a workload.")
@save_option
@device_option
@json_option
def bench(
    op: str,
    kernels: tuple[str, ...],
    shapes: tuple[str, ...],
    dtype: str | None,
    matrix: str | None,
    seconds: float,
    save: str | None,
    device: str | None,
    as_json: bool,
) -> int:
    """Time the kernels of OP against each other: device time and call time, with intervals, and the share of the ceiling.

    A kernel runs in its stored config where one is stored, else in its author's default. Each is checked before it is timed.
    Exit code 1 when one that was named could not be timed.
    """
    from kernelyard.cli.workloads import matrices
    from kernelyard.registry import registry
    from kernelyard.registry.machine import check_device, identity
    from kernelyard.tuner.bench import Bench
    from kernelyard.tuner.limits import Limits
    from kernelyard.verify.isolation import Worker

    device, everything = check_device(device), registry.current()
    frozen = matrices(everything, [op], device=device, matrix=matrix, shapes=shapes, dtype=dtype, default="performance")[0]
    contract, names = everything.op(op), [everything.kernel(op, name).name for name in kernels]
    rows: list[dict[str, Any]] = []
    with Worker() as worker:
        runner = Bench(worker, Limits())
        for point in frozen.points:
            workload = contract.workload(point, device)
            say(f"{op} {workload.label()}")
            rows += _workload(runner, everything, contract, workload, names, seconds)
    if save:
        say(f"saved {_save(save, identity(device), rows)}")
    if as_json:
        emit({"op": op, "device": identity(device).key(), "matrix": {"name": frozen.name, "hash": frozen.hash}, "rows": rows})
    else:
        _show(rows)
    named = set(names) & {row["kernel"] for row in rows if row["device_time_us"] is None}
    return 1 if named or all(row["device_time_us"] is None for row in rows) else 0


def _workload(
    runner: Bench, everything: Registry, op: Op, workload: Workload, names: Sequence[str], seconds: float
) -> list[dict[str, Any]]:
    """Rows of one workload: those that were timed, then those that were not, with the reason."""
    from kernelyard.registry.dispatch import as_pinned
    from kernelyard.registry.spec import Status

    items, failed = [], dict[str, str]()
    for kernel in everything.kernels(op.name):
        if names and kernel.name not in (*names, op.fallback, op.baseline):
            continue
        if kernel.name == op.baseline and everything.can_run(kernel, workload.device):
            items.append(_item(kernel, {}, workload))  # outside the contract, so not checked: it is there to compare with
            continue
        answer, config = as_pinned(op, kernel, workload)
        if not answer:
            failed[kernel.name] = answer.reason
            continue
        item = _item(kernel, config, workload)
        result = runner.prepare(item)
        if result.status is Status.OK:
            items.append(item)
        else:
            failed[kernel.name] = f"{result.status}: {result.reason}"
    return _timed(runner, op, workload, items, failed, seconds)


def _item(kernel: Kernel, config: Config, workload: Workload) -> Item:
    from kernelyard.tuner.bench import Item

    return Item(kernel.name, config, workload, patient=kernel.backend in ("torch", "compile"))


def _timed(
    runner: Bench, op: Op, workload: Workload, items: Sequence[Item], failed: dict[str, str], seconds: float
) -> list[dict[str, Any]]:
    from kernelyard.measure.roofline import limit_us
    from kernelyard.measure.stats import ratio_interval
    from kernelyard.tuner.bench import Result

    rows: list[dict[str, Any]] = []
    device = runner.time(items, {"budget_s": seconds}) if items else None
    call = runner.time(items, {"budget_s": seconds / 2}, mode="call") if items else None
    if isinstance(device, Result):
        failed.update({item.kernel: f"{device.status}: {device.reason}" for item in items})
        device = None
    limit = limit_us(op.cost(workload), workload.dtype, workload.device) if device else 0.0
    plain = {item.kernel: item for item in items}
    eager = plain.get(op.baseline) or plain.get(op.fallback)
    for item in items if device else ():
        assert device is not None
        timing = device.timings[item.id]
        faster = ratio_interval(device.samples[eager.id], device.samples[item.id]) if eager else None
        called = None if call is None or isinstance(call, Result) else call.timings[item.id].median_us
        rows.append(_row(op, workload, item.kernel) | {
            "config": dict(item.config), "device_time_us": timing.median_us, "low_us": timing.low_us, "high_us": timing.high_us,
            "call_time_us": called, "clock": timing.clock, "noisy": timing.noisy, "notes": device.notes[item.id],
            "speedup_vs_eager": None if faster is None else {"median": faster.median, "low": faster.low, "high": faster.high},
            "percent_of_ceiling": round(100 * limit / timing.median_us, 1) if timing.median_us and limit else None,
        })  # fmt: skip
    runner.keep([])
    rows.sort(key=lambda row: row["device_time_us"])
    return rows + [_row(op, workload, name) | {"reason": reason} for name, reason in sorted(failed.items())]


def _row(op: Op, workload: Workload, kernel: str) -> dict[str, Any]:
    absent = ("device_time_us", "low_us", "high_us", "call_time_us", "speedup_vs_eager", "percent_of_ceiling")
    return {
        "op": op.name,
        "workload": {"shapes": workload.shapes, "dtype": workload.dtype},
        "label": workload.label(),
        "kernel": kernel,
        "config": {},
        **dict.fromkeys(absent),
        "reason": "",
    }


def _show(rows: list[dict[str, Any]]) -> None:
    timed = [row for row in rows if row["device_time_us"] is not None]
    columns = (
        "workload",
        "kernel",
        "config",
        "device time >",
        "95% interval >",
        "call time >",
        "vs eager >",
        "95% interval >",
        "of ceiling >",
    )
    table("", columns, [_cells(row) for row in timed])
    for row in rows:
        if row["reason"]:
            print(f"{row['label']}: {row['kernel']} was not timed: {row['reason']}")
        elif row["noisy"]:
            print(f"{row['label']}: {row['kernel']} is noisy: {row['noisy']}")
    for note in dict.fromkeys(row["notes"] for row in timed if row["notes"]):
        print(f"note: {note}")


def _cells(row: dict[str, Any]) -> tuple[object, ...]:
    speedup, share = row["speedup_vs_eager"], row["percent_of_ceiling"]
    return (
        row["label"],
        row["kernel"],
        config_text(row["config"]),
        microseconds(row["device_time_us"]),
        f"{microseconds(row['low_us'])} to {microseconds(row['high_us'])}",
        microseconds(row["call_time_us"]),
        f"{speedup['median']:.2f}x" if speedup else "n/a",
        f"{speedup['low']:.2f} to {speedup['high']:.2f}" if speedup else "",
        "n/a" if share is None else f"{share:.0f}%",
    )


def _save(name: str, device: Any, rows: list[dict[str, Any]]) -> Any:
    from kernelyard.store.results import ResultRow, save_experiment

    timed = [row for row in rows if row["device_time_us"] is not None]
    by_label: dict[str, dict[str, float | None]] = {}
    for row in timed:
        by_label.setdefault(row["label"], {})[row["kernel"]] = row["device_time_us"]
    results = [ResultRow(row["op"], row["label"], row["kernel"], row["config"], row["device_time_us"], row["call_time_us"], row["low_us"],
                         row["high_us"], by_label[row["label"]], row["percent_of_ceiling"]) for row in timed]  # fmt: skip
    lines = [f"# {name}", "", f"`{command_line()}`", "", f"Device: {device.name} ({device.key()}).", "",
             "| workload | kernel | us | vs eager | of ceiling |", "| --- | --- | --- | --- | --- |"]  # fmt: skip
    lines += ["| " + " | ".join((c[0], c[1], c[3], c[6], c[8])) + " |" for c in (tuple(map(str, _cells(row))) for row in timed)]
    return save_experiment(name, results, device=device, command=command_line(), note="\n".join(lines) + "\n")
