"""Do two Ray workers with their trials on PostgreSQL choose what one process chooses? rmsnorm on the CPU of this machine.

    python -m benchmarks.beyond_one_process [--trials 8] [--shape 16x512]

One `kernelyard tune` by itself in a home of its own; then the same with --ray and --storage in another, on a cluster of this machine
with two workers and a server of its own. Both must choose the same kernel and config, or times whose 95% intervals meet; the server must
hold the finished trials and the home none; and by the log of the device's lock both workers timed, never together. Exit code 1 where
anything is not so.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.four_tuners import overlaps
from kernelyard.measure.device import holders
from kernelyard.registry.machine import identity
from kernelyard.tuner import studies
from tests import postgresql

WORKERS = 2


def main() -> int:
    """Tune twice, then compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=8, help="trials of each kernel")
    parser.add_argument("--shape", default="16x512", help="small: on a busy machine one thread is timed more surely than several")
    asked = parser.parse_args()
    words = ["rmsnorm", "--shape", asked.shape, "--dtype", "fp32", "--device", "cpu", "--trials", str(asked.trials), "--json"]
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as spread, postgresql.server() as url:
        alone = _tuned(Path(one), words)
        problems, workers = _on_a_cluster(Path(spread), words, url)
    print(f"one process: {_text(alone)}; two Ray workers and PostgreSQL: {_text(workers)}")
    problems += differences(alone, workers)
    print("\n".join(problems) or "the same choice, or two whose intervals meet")
    return 1 if problems else 0


def _tuned(home: Path, words: Sequence[str]) -> dict[str, Any]:
    command = [sys.executable, "-m", "kernelyard", "tune", *words]
    ended = subprocess.run(command, env={**os.environ, "KERNELYARD_HOME": str(home)}, capture_output=True, text=True, check=False)
    if ended.returncode != 0:
        raise SystemExit(f"{' '.join(words)} ended with {ended.returncode}: {ended.stderr[-800:]}")
    report = json.loads(ended.stdout)
    (run,) = report.get("runs", [report])  # of a cluster a run for each model of device
    (workload,) = run["workloads"]
    return dict(workload)


def _on_a_cluster(home: Path, words: Sequence[str], url: str) -> tuple[list[str], dict[str, Any]]:
    """What is wrong with where trials went and how they were timed; and the report."""
    os.environ.update(KERNELYARD_HOME=str(home), RAY_USAGE_STATS_ENABLED="0", RAY_AUTH_MODE="disabled")  # its workers inherit them
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": WORKERS, "include_dashboard": False})
    try:
        report = _tuned(home, [*words, "--ray", cluster.address, "--storage", url])
    finally:
        cluster.shutdown()
    storage = studies.open_storage(url)
    states = Counter(trial.state.name for study in storage.get_all_studies() for trial in storage.get_all_trials(study._study_id))
    held = holders(identity("cpu"))
    timed = Counter(one.pid for one in held)
    print(f"on the server: {dict(states)}; {len(held)} timings by {len(timed)} workers: {sorted(timed.values())}")
    own = studies.open_storage(f"sqlite:///{home / 'kernelyard.db'}").get_all_studies()
    problems = [*overlaps(held), *(f"the home has the study {study.study_name}" for study in own)]
    return problems if states["COMPLETE"] else [*problems, "no trial is on the server"], report


def differences(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """Nothing where the choices are the same or their intervals meet."""
    low, high = (max(r["device_time_us"]["low"] for r in (one, other)), min(r["device_time_us"]["high"] for r in (one, other)))
    same = one["choice"] == other["choice"]
    return [] if same or low <= high else [f"another choice: {_text(one)}, {_text(other)}"]


def _text(report: dict[str, Any]) -> str:
    times, choice = report["device_time_us"], report["choice"]
    config = " ".join(f"{name}={value}" for name, value in choice["config"].items())
    return f"{choice['kernel']} {config} {times['median']:.2f} us ({times['low']:.2f} to {times['high']:.2f})"


if __name__ == "__main__":
    sys.exit(main())
