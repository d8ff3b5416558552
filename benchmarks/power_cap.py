"""Whose clock does a kernel have at a GPU's power cap: its own, or that of what ran before it?

    python benchmarks/power_cap.py [--save NAME]

Attention and a matrix product by plain torch, each one graph of some 20 ms on kernelyard's clock: again and again by itself, in turn
with the other, and in turn with so many untimed replays of itself before each sample. Medians and extremes; see `POWER_LEAD_S` in
kernelyard/measure/interleave.py, which follows from it.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from typing import Any

import torch

from kernelyard.cli.output import show_and_save
from kernelyard.errors import KernelyardError
from kernelyard.measure import device
from kernelyard.measure.arguments import rotation
from kernelyard.measure.clocks import Stopwatch
from kernelyard.measure.cuda import graph_time
from kernelyard.registry import registry
from kernelyard.registry.machine import check_device, identity
from kernelyard.registry.matrix import Point

POINTS = {
    "attention": Point((2, 32, 8, 4096, 4096, 128), "bfloat16", statics=(("causal", True),)),
    "matmul": Point((1, 8192, 8192, 8192), "bfloat16"),
}
ALONE, IN_TURN = 40, 12
LEADS = (0, 1, 2, 4, 8)
"""Replays of some 20 ms."""


def main() -> int:
    """Time both in all orders, print them, keep them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--save", metavar="NAME", help="write experiments/<date>-NAME")
    asked = parser.parse_args()
    try:
        where = identity(check_device("cuda"))
        with torch.inference_mode(), device.lock(where):
            rows = measured({op: watch(op, point) for op, point in POINTS.items()})
    except KernelyardError as error:
        print(error, file=sys.stderr)
        return 2
    show_and_save(asked.save, rows, device=where, text=table(rows), about=__doc__)
    return 0


def watch(name: str, point: Point) -> Stopwatch:
    """A graph of plain torch's kernel on the op's own inputs."""
    table = registry.current()
    op, kernel = table.op(name), table.kernel(name, "torch.plain")
    workload = op.workload(point, "cuda")
    return graph_time(table.build(kernel, workload, {}), rotation(op, workload))


def measured(watches: dict[str, Stopwatch]) -> list[dict[str, Any]]:
    """A row for each op and order, microseconds of a call."""
    rows = []
    for name, one in watches.items():
        once = [sample(one) for _ in range(ALONE)]
        rows.append(_row(name, "by itself, the first fifth left out", once[ALONE // 5 :]))
    for lead in LEADS:
        taken: dict[str, list[float]] = {name: [] for name in watches}
        for _ in range(IN_TURN):
            for name, one in watches.items():
                one.run(lead * one.grain)
                taken[name].append(sample(one))
        rows += [_row(name, f"in turn, led in by {lead} replays of itself", times) for name, times in taken.items()]
    return rows


def sample(one: Stopwatch) -> float:
    """One replay."""
    return one.read(one.grain) / one.grain


def _row(name: str, order: str, times: list[float]) -> dict[str, Any]:
    return {"op": name, "order": order, "median_us": statistics.median(times), "least_us": min(times), "most_us": max(times)}


def table(rows: list[dict[str, Any]]) -> str:
    """For people, as Markdown."""
    lines = ["| op | order | median us | least | most |", "| --- | --- | --- | --- | --- |"]
    lines += [f"| {r['op']} | {r['order']} | {r['median_us']:.0f} | {r['least_us']:.0f} | {r['most_us']:.0f} |" for r in rows]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
