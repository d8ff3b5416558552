"""Device times of kernelyard's clocks beside the duration that NVIDIA's ncu reads from the GPU, for ten kernels from 2 us to 5 ms.

    python3 benchmarks/against_ncu.py [--save NAME]

ncu reports one launch from its start to its end; the L2 is filled with other data before it. Three clocks of ours are shown beside it:
`events` around single launches after the same flush, less what a pair of events around nothing reads; `activity`, the same launches
as torch's profiler records them; and `graph`, the replay that quoted device times come from, which is another quantity: launches
follow each other, so one's start overlaps the last one's tail (short kernels take less), and each finds the last one's results in L2
and pays for writing them back (long ones take more). Exit code 1 where a pair failed or the nearer clock of single launches is more
than 3% from ncu's.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

import torch

from kernelyard.errors import KernelyardError
from kernelyard.measure import cuda, device
from kernelyard.measure.arguments import rotation
from kernelyard.measure.clocks import Stopwatch
from kernelyard.measure.interleave import Plan, interleave
from kernelyard.measure.measured import Measured
from kernelyard.registry import registry
from kernelyard.registry.backend import Executable
from kernelyard.registry.dispatch import as_pinned
from kernelyard.registry.machine import check_device, identity
from kernelyard.registry.matrix import Point, point_payload
from kernelyard.registry.spec import Config, Workload
from kernelyard.store.results import heading, save_experiment

PAIRS = (
    ("rmsnorm", "triton.row", Point((16, 4096), "bfloat16")),
    ("vector_add", "triton.stream", Point((1 << 20,), "bfloat16")),
    ("rmsnorm", "triton.row", Point((4096, 768), "bfloat16")),
    ("softmax", "triton.row", Point((1000, 4095), "bfloat16")),
    ("vector_add", "triton.stream", Point((1 << 24,), "bfloat16")),
    ("rmsnorm", "triton.row", Point((8192, 4096), "bfloat16")),
    ("rmsnorm", "triton.row", Point((16384, 4096), "bfloat16")),
    ("softmax", "triton.sweep", Point((2048, 32768), "bfloat16")),
    ("vector_add", "triton.stream", Point((1 << 28,), "bfloat16")),
    ("vector_add", "triton.stream", Point((1_750_000_000,), "float32")),  # 21 GB moved: 5 ms at 4.2 TB/s
)
NEAR = 0.03
PLAN = Plan(batches=5, most_batches=8, budget_s=0.6, warm_up_s=0.2)
COLUMNS = (
    "op", "workload", "kernel", "ncu us", "events us", "events / ncu", "activity us", "activity / ncu", "graph us", "graph / ncu",
)  # fmt: skip
NUMBERS = ("ncu_us", "events_us", "events_over_ncu", "activity_us", "activity_over_ncu", "graph_us", "graph_over_ncu")
LAUNCHES = 20


@dataclass(frozen=True)
class Pair:
    """One kernel on one workload, ready to be timed."""

    op: str
    kernel: str
    point: Point
    workload: Workload
    config: Config
    executable: Executable


def main() -> int:
    """Time all pairs, print them, keep them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--save", metavar="NAME", default="against-ncu", help="experiments/<date>-NAME (against-ncu)")
    name = parser.parse_args().save
    try:
        check_device("cuda")
    except KernelyardError as error:
        print(error, file=sys.stderr)
        return 2
    rows: list[Mapping[str, Any]] = [row(*pair) for pair in PAIRS]
    text = table(rows)
    print(text)
    print(f"saved {save(name, rows, text)}", file=sys.stderr)
    return 0 if all(_near(one) for one in rows) else 1


def _near(row: Mapping[str, Any]) -> bool:
    return any(row[clock] is not None and abs(row[clock] - 1) <= NEAR for clock in ("events_over_ncu", "activity_over_ncu"))


def row(op: str, kernel: str, point: Point) -> dict[str, Any]:
    """The three times of one pair; a pair that fails has its reason."""
    times = ("ncu_us", *(f"{clock}{kind}" for clock in ("events", "activity", "graph") for kind in ("_us", "_over_ncu")))
    found = {"op": op, "workload": f"{point.dims} {point.dtype}", "kernel": kernel, "config": {}, "reason": "", **dict.fromkeys(times)}
    print(f"{op} {kernel} {found['workload']}", file=sys.stderr, flush=True)
    try:
        found |= _times(_pair(op, kernel, point))
    except Exception as error:  # memory, a capture, ncu: whatever it is costs this pair and no other
        found["reason"] = f"{type(error).__name__}: {error}"
    return found


def _pair(op_name: str, kernel_name: str, point: Point) -> Pair:
    everything = registry.current()
    op, kernel = everything.op(op_name), everything.kernel(op_name, kernel_name)
    workload = op.workload(point, "cuda")
    answer, config = as_pinned(op, kernel, workload)
    if not answer:
        raise KernelyardError(answer.reason)
    return Pair(op_name, kernel_name, point, workload, config, everything.build(kernel, workload, config))


def _times(pair: Pair) -> dict[str, Any]:
    from kernelyard.measure.ncu import duration_us

    graph, events, activity = _measure(pair, cuda.graph_time), _measure(pair, cuda.event_time), _activity_us(pair)
    torch.cuda.empty_cache()  # ncu runs the kernel in a process of its own
    ncu = duration_us(pair.op, pair.kernel, dict(pair.config), point_payload(pair.point))
    single = events["kernel"].median_us - events["nothing"].median_us
    return {
        "workload": pair.workload.label(), "config": dict(pair.config), "ncu_us": ncu,
        "graph_us": graph["kernel"].median_us, "graph_low_us": graph["kernel"].low_us, "graph_high_us": graph["kernel"].high_us,
        "events_us": single, "empty_pair_us": events["nothing"].median_us, "noisy": graph["kernel"].noisy, "conditions": graph.conditions,
        "activity_us": activity,
        "graph_over_ncu": graph["kernel"].median_us / ncu, "events_over_ncu": single / ncu, "activity_over_ncu": activity / ncu,
    }  # fmt: skip


def _measure(pair: Pair, clock: Callable[[Executable, Any], Stopwatch]) -> Measured:
    """By one clock, alone on the device; by events, beside a pair of events around nothing. The sets are given back at the end."""
    where = identity("cuda")
    with device.lock(where):
        sets = rotation(registry.current().op(pair.op), pair.workload)
        watches = {"kernel": clock(pair.executable, sets)}
        if clock is cuda.event_time:
            watches["nothing"] = cuda.event_time(Executable(_nothing, _nothing), sets)
        return interleave(watches, PLAN, "device", device.guard(where))


def _activity_us(pair: Pair) -> float:
    """Median of single launches after a flush, as the profiler records each kernel; the flush's own kernel is left out by its name."""
    with device.lock(identity("cuda")):
        sets, flush, into = rotation(registry.current().op(pair.op), pair.workload), cuda.flusher(), pair.executable.into
        assert into is not None
        flushing = {event.name for event in _profiled(flush)}

        def launches() -> None:
            for outputs, args in islice(sets.turn, LAUNCHES):
                flush()
                into(outputs, *args)

        return median(event.time_range.elapsed_us() for event in _profiled(launches) if event.name not in flushing)


def _profiled(work: Callable[[], None]) -> list[Any]:
    """What the device did; memory that the allocator clears is no part of it."""
    work()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA], acc_events=True) as profile:
        work()
        torch.cuda.synchronize()
    return [event for event in profile.events() if event.device_type.name == "CUDA" and not event.name.startswith("Mem")]


def _nothing(*args: Any) -> None:
    return None


def table(rows: list[Mapping[str, Any]]) -> str:
    """For people, as Markdown."""
    lines = ["| " + " | ".join(COLUMNS) + " |", "|" + " --- |" * len(COLUMNS)]
    for one in rows:
        numbers = [_cell(one[key]) for key in NUMBERS]
        lines.append("| " + " | ".join((one["op"], one["workload"], one["kernel"], *numbers)) + " |")
    return "\n".join([*lines, *(f"\n{one['op']} {one['workload']} {one['kernel']}: {one['reason']}" for one in rows if one["reason"])])


def _cell(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.4g}"


def save(name: str, rows: list[Mapping[str, Any]], text: str) -> Path:
    """As an experiment."""
    where, command = identity("cuda"), shlex.join(["python3", *sys.argv])
    note = f"{heading(name, command, where)}\n{text}\n\n{__doc__}"
    return save_experiment(name, rows, device=where, command=command, note=note)


if __name__ == "__main__":
    sys.exit(main())
