"""Device times of kernelyard's clocks beside the duration that NVIDIA's ncu reads from the GPU, for ten kernels from 2 us to 5 ms.

    python3 benchmarks/against_ncu.py [--save NAME]

ncu serialises kernels, flushes all caches before each and reports one launch from its start to its end. Two clocks of ours are
shown beside it: `graph`, the replay that every quoted time comes from, where launches follow each other and one's start
may overlap the last one's tail; and `events` around single launches after a flush, less what a pair of events around nothing
reads, which is the nearest to what ncu does. Exit code 1 where a pair failed or the graph's time is more than 3% from ncu's.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
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
from kernelyard.store.results import save_experiment

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
COLUMNS = ("op", "workload", "kernel", "ncu us", "graph us", "graph / ncu", "events us", "events / ncu")


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
    return 0 if all(one["graph_over_ncu"] and abs(one["graph_over_ncu"] - 1) <= NEAR for one in rows) else 1


def row(op: str, kernel: str, point: Point) -> dict[str, Any]:
    """The three times of one pair; a pair that fails has its reason."""
    times = ("ncu_us", "graph_us", "events_us", "graph_over_ncu", "events_over_ncu")
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

    graph, events = _measure(pair, cuda.graph_time), _measure(pair, cuda.event_time)
    torch.cuda.empty_cache()  # ncu runs the kernel in a process of its own
    ncu = duration_us(pair.op, pair.kernel, dict(pair.config), point_payload(pair.point))
    single = events["kernel"].median_us - events["nothing"].median_us
    return {
        "workload": pair.workload.label(), "config": dict(pair.config), "ncu_us": ncu,
        "graph_us": graph["kernel"].median_us, "graph_low_us": graph["kernel"].low_us, "graph_high_us": graph["kernel"].high_us,
        "events_us": single, "empty_pair_us": events["nothing"].median_us, "noisy": graph["kernel"].noisy, "conditions": graph.conditions,
        "graph_over_ncu": graph["kernel"].median_us / ncu, "events_over_ncu": single / ncu,
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


def _nothing(*args: Any) -> None:
    return None


def table(rows: list[Mapping[str, Any]]) -> str:
    """For people, as Markdown."""
    lines = ["| " + " | ".join(COLUMNS) + " |", "|" + " --- |" * len(COLUMNS)]
    for one in rows:
        numbers = [_cell(one[key]) for key in ("ncu_us", "graph_us", "graph_over_ncu", "events_us", "events_over_ncu")]
        lines.append("| " + " | ".join((one["op"], one["workload"], one["kernel"], *numbers)) + " |")
    return "\n".join([*lines, *(f"\n{one['op']} {one['workload']} {one['kernel']}: {one['reason']}" for one in rows if one["reason"])])


def _cell(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.4g}"


def save(name: str, rows: list[Mapping[str, Any]], text: str) -> Path:
    """As an experiment."""
    where, command = identity("cuda"), shlex.join(["python3", *sys.argv])
    note = f"# {name}\n\n`{command}`\n\nDevice: {where.name} ({where.key()}).\n\n{text}\n\n{__doc__}"
    return save_experiment(name, rows, device=where, command=command, note=note)


if __name__ == "__main__":
    sys.exit(main())
