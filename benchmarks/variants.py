"""What one step away from each kernel's default does: every config that differs in one parameter, checked and timed in one measurement.

    python benchmarks/variants.py OP [--device cuda] [--shape 8192x4096] [--kernel triton.row] [--seconds 3] [--save NAME]

For authors: it shows whether a default is the best of its neighbourhood on the frozen shapes, and which parameter matters. Builds run
ahead in parallel; each variant is checked on its workload before it is timed, beside a copy of as many bytes.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from kernelyard.cli.output import say, show_and_save
from kernelyard.errors import KernelyardError
from kernelyard.registry import registry
from kernelyard.registry.kernel import Kernel
from kernelyard.registry.machine import check_device, identity
from kernelyard.registry.matrix import Point
from kernelyard.registry.op import Op
from kernelyard.registry.spec import Config, Status, Workload
from kernelyard.tuner import ahead
from kernelyard.tuner.bench import Bench, Item, Result
from kernelyard.tuner.limits import Limits
from kernelyard.verify.isolation import Worker


def main() -> int:
    """Time the variants, print a table for each workload, keep them all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("op")
    parser.add_argument("--device", help="cpu or cuda (this machine's)")
    parser.add_argument("--shape", action="append", default=[], help="only this shape; may be given again")
    parser.add_argument("--kernel", action="append", default=[], help="only this kernel; may be given again")
    parser.add_argument("--seconds", type=float, default=3.0, help="time for the batches of a workload (3)")
    parser.add_argument("--save", metavar="NAME", help="write experiments/<date>-NAME")
    asked = parser.parse_args()
    try:
        device = check_device(asked.device)
        op = registry.current().op(asked.op)
        workloads = [op.workload(point, device) for point in points(op, device, asked.shape)]
        rows = measured(op, workloads, asked.kernel, asked.seconds)
    except KernelyardError as error:
        print(error, file=sys.stderr)
        return 2
    show_and_save(asked.save, rows, device=identity(device), text=table(rows), about=__doc__)
    return 0


def points(op: Op, device: str, shapes: Sequence[str]) -> list[Point]:
    """The frozen performance matrix, or those of its points that have the shapes asked for."""
    frozen = op.matrix("performance", device).points
    wanted = {op.parse_shape(shape) for shape in shapes}
    return [point for point in frozen if not wanted or point.dims in wanted]


def measured(op: Op, workloads: Sequence[Workload], names: Sequence[str], seconds: float) -> list[dict[str, Any]]:
    """Rows of all workloads, the fastest of each first."""
    items = {workload.key(): list(variants(op, workload, names)) for workload in workloads}
    every = [item for some in items.values() for item in some]
    ahead.build(every, Limits(), ahead.processes(len(every)), say)
    rows: list[dict[str, Any]] = []
    with Worker() as worker:
        runner = Bench(worker, Limits())
        for workload in workloads:
            say(f"{op.name} {workload.label()}: {len(items[workload.key()])} variants")
            rows += timed(runner, op, workload, items[workload.key()], seconds)
    return rows


def variants(op: Op, workload: Workload, names: Sequence[str]) -> Iterator[Item]:
    """The default of each kernel that can run, and all that the space has one parameter away from it."""
    everything = registry.current()
    for kernel in everything.kernels(op.name):
        if (names and kernel.name not in names) or not (everything.can_run(kernel, workload.device) and kernel.support.fits(workload)):
            continue
        for config in around(kernel, workload):
            yield Item(kernel.name, config, workload, patient=kernel.backend in ("torch", "compile"))


def around(kernel: Kernel, workload: Workload) -> Iterator[Config]:
    """The default, then its neighbours: each other value of each parameter alone."""
    default = kernel.space.default_for(workload)
    yield default
    for parameter in kernel.space.parameters:
        for value in parameter.values:
            config = {**default, parameter.name: value}
            if config != default and kernel.space.allows(config, workload):
                yield config


def timed(runner: Bench, op: Op, workload: Workload, items: Sequence[Item], seconds: float) -> list[dict[str, Any]]:
    """One measurement of all variants that are right; the others have their reason."""
    results = {item.id: runner.prepare(item) for item in items}
    right = [item for item in items if results[item.id].status is Status.OK]
    rows = [_row(op, item) | {"reason": f"{results[item.id].status}: {results[item.id].reason}"} for item in items if item not in right]
    times = runner.time(right, {"batches": 3, "most_batches": 3, "budget_s": seconds}, ceiling=True) if right else None
    if times is None or isinstance(times, Result):
        reason = times.reason if times else ""
        return rows + [_row(op, item) | {"reason": reason} for item in right]
    found = []
    for item in right:
        timing = times.timings[item.id]
        share = times.copy_us / timing.median_us if times.copy_us and timing.median_us else None
        facts = {"device_time_us": timing.median_us, "low_us": timing.low_us, "high_us": timing.high_us, "noisy": timing.noisy}
        found.append(_row(op, item) | facts | {"copy_us": times.copy_us, "of_copy": share, "resources": runner.resources(item)})
    runner.keep([])
    return sorted(found, key=lambda row: row["device_time_us"]) + rows


def _row(op: Op, item: Item) -> dict[str, Any]:
    config = dict(item.config)
    default = registry.current().kernel(op.name, item.kernel).space.default_for(item.workload)
    names = {"op": op.name, "workload": item.workload.label(), "workload_key": item.workload.key(), "kernel": item.kernel}
    return names | {"config": config, "is_default": config == dict(default), "device_time_us": None, "of_copy": None, "reason": ""}


def table(rows: Sequence[dict[str, Any]]) -> str:
    """For people, as Markdown; the defaults are marked."""
    lines = ["| workload | kernel | config | device us | of copy |", "| --- | --- | --- | --- | --- |"]
    for row in rows:
        config = " ".join(f"{name}={value}" for name, value in row["config"].items()) or "-"
        mark = " (default)" if row["is_default"] else ""
        time = row["reason"] if row["device_time_us"] is None else f"{row['device_time_us']:.4g}"
        share = "n/a" if row["of_copy"] is None else f"{row['of_copy']:.3f}"
        lines.append(f"| {row['workload']} | {row['kernel']}{mark} | {config} | {time} | {share} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
