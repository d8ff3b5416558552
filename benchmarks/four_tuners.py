"""Do tuners share a home? Four `kernelyard tune rmsnorm` at once on one CPU, each beginning with another of the same four workloads.

    python benchmarks/four_tuners.py [--trials 4]

Afterwards: no two timings overlap by the log of the device's lock, each timing was taken by a process that began and ended it, more than
one process timed, each workload was searched once, and all four report the same choice for each. Exit code 1 where anything is not so.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from kernelyard.measure.device import Holder, holders
from kernelyard.registry.machine import identity

SHAPES = ("1x512", "16x512", "64x1024", "256x2048")
"""From a few microseconds to some hundreds: short timings meet long ones."""

Report = dict[str, Any]


def main() -> int:
    """Tune, then read the log and the reports."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=4, help="trials of each kernel on each workload")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        os.environ["KERNELYARD_HOME"] = home
        begun = time.monotonic()
        reports = _reports(asked.trials)
        took_s = time.monotonic() - begun
        held = holders(identity("cpu"))
    problems = [*overlaps(held), *disagreements(reports)]
    print(_told(held, reports, took_s))
    print("\n".join(problems) or "each timing was alone on its device, and all four tuners agree")
    return 1 if problems else 0


def _reports(trials: int) -> list[Report]:
    """What four tuners print, the i-th beginning with the i-th workload."""
    tuners = []
    for first in range(len(SHAPES)):
        shapes = [word for shape in (*SHAPES[first:], *SHAPES[:first]) for word in ("--shape", shape)]
        words = ["tune", "rmsnorm", "--device", "cpu", "--dtype", "fp32", "--trials", str(trials), "--json", *shapes]
        command = [sys.executable, "-m", "kernelyard", *words]
        tuners.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
    reports = []
    for tuner in tuners:
        out, told = tuner.communicate()
        if tuner.returncode != 0:
            raise SystemExit(f"process {tuner.pid} ended with {tuner.returncode}: {told[-800:]}")
        reports.append(json.loads(out))
    return reports


def overlaps(held: Sequence[Holder]) -> list[str]:
    """Timings that never ended, or began before the one ahead had ended; and a log that proves nothing."""
    found = [f"process {one.pid} never said that it was done" for one in held if one.end is None]
    for one, following in pairwise(held):
        if one.end is not None and following.start < one.end:
            found.append(f"processes {one.pid} and {following.pid} timed together for {one.end - following.start:.6f} s")
    return found if len({one.pid for one in held}) > 1 else [*found, "fewer than two processes timed: this shows nothing"]


def disagreements(reports: Sequence[Report]) -> list[str]:
    """Workloads with more than one choice, or choices of more than one search."""
    found = []
    for label in sorted({one["workload"]["label"] for report in reports for one in report["workloads"]}):
        mine = [one for report in reports for one in report["workloads"] if one["workload"]["label"] == label]
        choices = {json.dumps([one["choice"], one["run_id"]], sort_keys=True) for one in mine}
        if len(choices) != 1 or len(mine) != len(reports):
            found.append(f"{label}: {len(mine)} of {len(reports)} tuners chose, {len(choices)} different: {'; '.join(sorted(choices))}")
    return found


def _told(held: Sequence[Holder], reports: Sequence[Report], took_s: float) -> str:
    alone_s = sum(one.end - one.start for one in held if one.end is not None)
    waited = [following.start - one.end for one, following in pairwise(held) if one.end is not None and following.pid != one.pid]
    least = f"{min(waited) * 1e3:.2f} ms" if waited else "n/a"
    workloads = reports[0]["workloads"]
    searched = len({one["run_id"] for one in workloads})
    return (
        f"{len(held)} timings by {len({one.pid for one in held})} processes, {alone_s:.1f} s of {took_s:.1f} s; the device changed hands "
        f"{len(waited)} times, at least {least} apart; {len(workloads)} workloads searched by {searched} of {len(reports)} tuners"
    )


if __name__ == "__main__":
    sys.exit(main())
