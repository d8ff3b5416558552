"""Does tuning find as fast a kernel again? Tunes ops twice, each time from nothing, then times both choices against each other.

    python benchmarks/winners_hold.py OP... [--device cuda] [--trials 8] [--kernel triton.row ...] [--seconds 1] [--save NAME]

A winner of a tuning run is the least of many measured times, so that some of its advantage is luck: the second run may choose another
config. That is no fault where the two are as fast. Where they differ, both are timed once more, interleaved: they agree where their times
differ by less than 2%. Exit code 1 when fewer than 95% of the workloads agree.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from kernelyard.cli.output import show_and_save
from kernelyard.cli.workloads import matrices
from kernelyard.errors import KernelyardError, MeasurementFailed
from kernelyard.measure.stats import Interval, ratio_interval
from kernelyard.registry import registry
from kernelyard.registry.machine import check_device, identity
from kernelyard.registry.spec import Workload
from kernelyard.tuner.bench import Bench, Item, Result
from kernelyard.tuner.limits import Limits
from kernelyard.verify.isolation import Worker

WITHIN, LEAST_SHARE = 0.02, 0.95
Chosen = Mapping[str, Mapping[str, Any]]
"""By workload key: the kernel and config of one run."""


def main() -> int:
    """Tune twice, compare, keep the rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ops", nargs="+", metavar="OP")
    parser.add_argument("--device", help="cpu or cuda (this machine's)")
    parser.add_argument("--trials", type=int, default=8, help="for each kernel and workload (8)")
    parser.add_argument("--kernel", action="append", default=[], help="only this kernel, beside the references; may be given again")
    parser.add_argument("--shape", action="append", default=[], help="only this shape; may be given again")
    parser.add_argument("--seconds", type=float, default=1.0, help="time for the batches of the two choices of a workload (1)")
    parser.add_argument("--save", metavar="NAME", help="write experiments/<date>-NAME")
    asked = parser.parse_args()
    try:
        device, everything = check_device(asked.device), registry.current()
        rows: list[dict[str, Any]] = []
        options = [f"--trials={asked.trials}", f"--device={device}", *(f"--kernel={name}" for name in asked.kernel)]
        options += [f"--shape={shape}" for shape in asked.shape]
        for frozen in matrices(everything, asked.ops, device=device, matrix=None, shapes=asked.shape, dtype=None, default="performance"):
            workloads = [everything.op(frozen.op).workload(point, device) for point in frozen.points]
            rows += compared(workloads, tuned(frozen.op, options), tuned(frozen.op, options), asked.seconds)
    except KernelyardError as error:
        print(error, file=sys.stderr)
        return 2
    show_and_save(asked.save, rows, device=identity(device), text=table(rows), about=__doc__)
    return 0 if sum(row["agrees"] for row in rows) / len(rows) >= LEAST_SHARE else 1


def tuned(op: str, options: Sequence[str]) -> Chosen:
    """What `kernelyard tune` chooses in a home of its own."""
    with tempfile.TemporaryDirectory() as home:
        command = [sys.executable, "-m", "kernelyard", "tune", op, *options, "--json"]
        done = subprocess.run(command, stdout=subprocess.PIPE, env={**os.environ, "KERNELYARD_HOME": home}, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}")
    return {one["workload"]["key"]: one["choice"] for one in json.loads(done.stdout)["workloads"]}


def compared(workloads: Sequence[Workload], first: Chosen, second: Chosen, seconds: float) -> list[dict[str, Any]]:
    """A row for each workload: both choices, and the time of the second over that of the first."""
    rows = []
    with Worker() as worker:
        bench = Bench(worker, Limits())
        for workload in workloads:
            one, other = (_item(workload, chosen[workload.key()]) for chosen in (first, second))
            found = Interval(1.0, 1.0, 1.0) if one == other else ratio(bench, one, other, seconds)
            agrees = abs(found.median - 1) < WITHIN
            names = {"op": workload.op, "workload": workload.label(), "first": _named(one), "second": _named(other)}
            rows.append(names | {"same": one == other, "ratio": asdict(found), "agrees": agrees})
    return rows


def ratio(bench: Bench, one: Item, other: Item, seconds: float) -> Interval:
    """The time of the other over that of the one, in one measurement; raises MeasurementFailed."""
    times = bench.time([one, other], {"batches": 3, "most_batches": 5, "budget_s": seconds})
    bench.keep([])
    if isinstance(times, Result):
        raise MeasurementFailed(f"the choices for {one.workload.label()} could not be timed: {times.reason}")
    found = ratio_interval(times.samples[other.id], times.samples[one.id])
    if found is None:
        raise MeasurementFailed(f"the choices for {one.workload.label()} take less time than the clock can tell.")
    return found


def _item(workload: Workload, choice: Mapping[str, Any]) -> Item:
    kernel = registry.current().kernel(workload.op, choice["kernel"])
    return Item(kernel.name, choice["config"], workload, patient=kernel.backend in ("torch", "compile"))


def _named(item: Item) -> str:
    return " ".join([item.kernel, *(f"{name}={value}" for name, value in item.config.items())])


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """For people, as Markdown, and how many agree."""
    lines = ["| op | workload | first | second | second over first | agree |", "| --- | --- | --- | --- | --- | --- |"]
    for row in rows:
        times = "the same" if row["same"] else "{median:.3f} ({low:.3f} to {high:.3f})".format_map(row["ratio"])
        lines.append(
            f"| {row['op']} | {row['workload']} | {row['first']} | {row['second']} | {times} | {'yes' if row['agrees'] else 'NO'} |"
        )
    agree, same = (sum(row[name] for row in rows) for name in ("agrees", "same"))
    return "\n".join([*lines, "", f"{agree} of {len(rows)} workloads agree within {WITHIN:.0%}; {same} chose the same."])


if __name__ == "__main__":
    sys.exit(main())
