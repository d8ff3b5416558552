"""`bench OP`: every kernel of an op side by side on the same workloads, as dispatch would run each."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import click

from kernelyard.cli.output import (
    Seconds,
    device_option,
    dtype_option,
    emit,
    json_option,
    matrix_option,
    save_option,
    say,
    shape_option,
)


@click.command(epilog="Example: kernelyard bench rmsnorm --shape 512x4096 --kernel cpp.onepass")
@click.argument("op")
@click.option("--kernel", "kernels", multiple=True, help="Only this kernel (beside plain torch); may be given again.")
@shape_option("512x4096")
@dtype_option
@matrix_option
@click.option("--seconds", type=Seconds(min=0.1), default=2.0, show_default=True, help="Time for the batches of a workload.")
@click.option("--energy", is_flag=True, help="Joules of a call too, where the device tells: half a second more for each kernel.")
@click.option("--explain", "explained", is_flag=True, help="What each time means: ceiling, occupancy, and what bounds it.")
@click.option("--against-itself", "itself", is_flag=True, help="The named kernel against itself: does the interval contain 1.0?")
@click.option("--repeat", type=click.IntRange(min=1), default=100, show_default=True, help="Measurements of --against-itself.")
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
    energy: bool,
    explained: bool,
    itself: bool,
    repeat: int,
    save: str | None,
    device: str | None,
    as_json: bool,
) -> int:
    """Time the kernels of OP against each other: device time and call time, with intervals, and the share of the ceiling.

    A kernel runs in its stored config where one is stored, else in its author's default; on --matrix held_out always in the
    latter, as nothing may have been chosen on those points. Each is checked before it is timed.
    A time that the device can't reach is flagged as impossible and is no result. Exit code 1 when a kernel that was named
    could not be timed, or when fewer than 95% of the intervals of --against-itself contain 1.0. Ctrl-C keeps the workloads
    that have finished (exit code 130).
    """
    from kernelyard.cli import bench_explained, bench_text
    from kernelyard.cli.bench_itself import bench_itself
    from kernelyard.cli.bench_rows import bench_workload, items_of
    from kernelyard.cli.workloads import matrices
    from kernelyard.registry import choices, registry
    from kernelyard.registry.machine import check_device, identity
    from kernelyard.tuner import ahead
    from kernelyard.tuner.bench import Bench
    from kernelyard.tuner.limits import Limits
    from kernelyard.verify.isolation import Worker

    device, everything = check_device(device), registry.current()
    frozen = matrices(everything, [op], device=device, matrix=matrix, shapes=shapes, dtype=dtype, default="performance")[0]
    contract, names = everything.op(op), [everything.kernel(op, name).name for name in kernels]
    if itself:
        return bench_itself(everything, contract, names, frozen, device, seconds=seconds, repeat=repeat, save=save, as_json=as_json)
    options = {"budget_s": seconds, "energy": energy}
    rows: list[dict[str, Any]] = []
    workloads = [contract.workload(point, device) for point in frozen.points]
    interrupted = False
    with choices.none() if frozen.held_out else nullcontext(), Worker() as worker:
        items = [item for workload in workloads for item in items_of(everything, contract, workload, names)]
        ahead.build(items, Limits(), ahead.processes(len(items)), say)
        runner = Bench(worker, Limits())
        try:
            for workload in workloads:
                say(f"{op} {workload.label()}")
                found = bench_workload(runner, everything, contract, workload, names, options)
                rows += [row | {"matrix": frozen.name, "held_out": frozen.held_out} for row in found]
            if explained:
                bench_explained.explain(runner, contract, device, frozen.points, rows)
        except KeyboardInterrupt:
            if not rows:
                raise
            interrupted = True
            say("interrupted: what follows is of the workloads that had finished")
    if save:
        say(f"saved {bench_text.save(save, identity(device), rows)}")
    if as_json:
        emit({"op": op, "device": identity(device).key(), "matrix": {"name": frozen.name, "hash": frozen.hash}, "rows": rows})
    else:
        bench_text.show(rows)
        bench_explained.show(rows)
    if interrupted:
        return 130
    named = set(names) & {row["kernel"] for row in rows if row["device_time_us"] is None}
    return 1 if named or all(row["device_time_us"] is None for row in rows) else 0
