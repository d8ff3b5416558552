"""The same rmsnorm and the same configs by kernelyard, Kernel Tuner and triton.autotune: how long, how many, and which is found.

    python benchmarks/beside_tuners.py [--device cuda] [--shape 8192x4096] [--save NAME]

On a GPU a space of CUDA C++ (kernelyard, Kernel Tuner) and one of Triton (kernelyard, triton.autotune), on a CPU one of C++. Every tool
runs by itself, one after another, from caches in folders that are empty: KERNELYARD_HOME, TRITON_CACHE_DIR, CUPY_CACHE_DIR,
CUDA_CACHE_PATH. Seconds are of tuning alone, imports left out, and beside them those of the whole process. Kernel Tuner is run twice,
without a check of results and with one, for it leaves that open. A tool's own figure of its best comes from its own protocol; so all
winners are timed again, interleaved with each other and a copy of as many bytes, by kernelyard's. A tool that fails is a row with its
reason, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(HERE), str(HERE.parent), os.environ.get("PYTHONPATH"))))
os.environ["KERNELYARD_EXTRA_PLUGINS"] = "beside.declared:plugin"  # for the registry of this process and of every worker

from beside.declared import KERNELS  # noqa: E402
from beside.found import Found, space_of  # noqa: E402

from kernelyard.cli.output import config_text, say, show_and_save  # noqa: E402
from kernelyard.errors import KernelyardError  # noqa: E402
from kernelyard.registry.machine import check_device, identity  # noqa: E402
from kernelyard.registry.spec import Config, Status  # noqa: E402
from kernelyard.tuner.bench import Bench, Item, Result  # noqa: E402
from kernelyard.tuner.limits import Limits  # noqa: E402
from kernelyard.verify.isolation import Worker  # noqa: E402

CACHES = ("KERNELYARD_HOME", "TRITON_CACHE_DIR", "CUPY_CACHE_DIR", "CUDA_CACHE_PATH")
LIMIT_S = {"cuda": 180.0, "cpu": 600.0}
"""For one tool, twice and more of what is expected; two crowded cores take half a minute to build a config for kernelyard."""


@dataclass(frozen=True)
class Run:
    """A tool on a language's space. Of `backends`, the tool's own, the first that works is taken."""

    tool: str
    module: str
    language: str
    backends: tuple[str, ...] = ("",)
    check: bool = False

    @property
    def limit_s(self) -> float:
        """For its process."""
        return LIMIT_S["cpu" if self.language == "cpp" else "cuda"]


KERNEL_TUNER, NVIDIA = "beside.by_kernel_tuner", ("NVCUDA", "CUPY")
RUNS = {
    "cuda": (
        Run("Kernel Tuner", KERNEL_TUNER, "cuda", NVIDIA),
        Run("Kernel Tuner, answer given", KERNEL_TUNER, "cuda", NVIDIA, check=True),
        Run("triton.autotune", "beside.by_autotune", "triton"),
        Run("kernelyard", "beside.by_kernelyard", "triton"),
        Run("kernelyard", "beside.by_kernelyard", "cuda"),
    ),
    "cpu": (
        Run("Kernel Tuner", KERNEL_TUNER, "cpp"),
        Run("Kernel Tuner, answer given", KERNEL_TUNER, "cpp", check=True),
        Run("kernelyard", "beside.by_kernelyard", "cpp"),
    ),
}
SHAPES = {"cuda": "8192x4096", "cpu": "512x4096"}


def main() -> int:
    """Run the tools, time their winners, print and keep both."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", help="cpu or cuda (this machine's)")
    parser.add_argument("--shape", help="of x (8192x4096, on a CPU 512x4096)")
    parser.add_argument("--save", metavar="NAME", help="write experiments/<date>-NAME")
    asked = parser.parse_args()
    try:
        device = check_device(asked.device)
        shape = asked.shape or SHAPES[device]
        for language in {run.language for run in RUNS[device]}:
            space_of(language, shape)  # refuses a shape before anything has run
        rows = [row(run, shape) for run in RUNS[device]]
        timed(rows, shape)
    except KernelyardError as error:
        print(error, file=sys.stderr)
        return 2
    show_and_save(asked.save, rows, device=identity(device), text=report(rows), about=__doc__)
    return 0 if all(one["reason"] == "" for one in rows) else 1


def row(run: Run, shape: str) -> dict[str, Any]:
    """What a tool found, or why there is nothing, with the seconds of its whole process."""
    reasons = []
    for backend in run.backends:
        say(f"{run.tool} {backend}: {run.language}")
        found, reason, seconds = alone(run, backend, shape)
        if found is not None:
            facts = {**asdict(found), "language": run.language, "process_s": seconds, "other_backends": reasons, "reason": ""}
            return facts if found.finished else {**facts, "reason": f"no config finished: {found.about.get('first_failure', '')}"}
        say(reason)
        reasons.append(f"{backend or run.tool}: {reason}")
    return {"tool": run.tool, "language": run.language, "process_s": None, "best": None, "reason": "; ".join(reasons)}


def alone(run: Run, backend: str, shape: str) -> tuple[Found | None, str, float]:
    """One tool in a process of its own, from empty caches in a folder that is gone afterwards."""
    with tempfile.TemporaryDirectory() as folder:
        into = Path(folder) / "found.json"
        caches = {name: str(Path(folder) / name.lower()) for name in CACHES}
        command = [sys.executable, "-m", run.module, "--language", run.language, "--shape", shape, "--into", str(into)]
        command += ["--backend", backend] * bool(backend) + ["--check"] * run.check
        start = time.perf_counter()
        try:
            ended = subprocess.run(
                command, env={**os.environ, **caches}, timeout=run.limit_s, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                errors="replace", cwd=folder, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return None, f"not finished after {run.limit_s:.0f} s", run.limit_s
        seconds = time.perf_counter() - start
        if ended.returncode or not into.is_file():
            return None, f"exit code {ended.returncode}: {ended.stdout[-1500:]}", seconds
        return Found.read(into), "", seconds


def timed(rows: Sequence[dict[str, Any]], shape: str) -> None:
    """Each winner's time, all interleaved in one measurement; into the rows. A winner that two tools agree on is timed once."""
    winners = [(one, winner(one["language"], one["best"], shape)) for one in rows if one["best"] is not None]
    limits = Limits()
    with Worker() as worker:
        bench = Bench(worker, limits)
        items = {item.id: item for _, item in winners}
        results = {name: bench.prepare(item) for name, item in items.items()}
        right = [item for name, item in items.items() if results[name].status is Status.OK]
        times = bench.time(right, limits.finals, ceiling=True) if right else Result(Status.WRONG, "no winner is right")
    for one, item in winners:
        if isinstance(times, Result) or item.id not in times.timings:
            failed = times if isinstance(times, Result) else results[item.id]
            one["reason"] = f"its best was not timed again: {failed.status}: {failed.reason}"
            continue
        timing = times.timings[item.id]
        one |= {"device_time_us": timing.median_us, "low_us": timing.low_us, "high_us": timing.high_us, "copy_us": times.copy_us}


def winner(language: str, config: Config, shape: str) -> Item:
    """A tool's best as an item of kernelyard's."""
    workload, _ = space_of(language, shape)
    return Item(KERNELS[language], config, workload)


def report(rows: Sequence[dict[str, Any]]) -> str:
    """For people, as Markdown: what it took, what was found, and how each tool times and checks."""
    lines = ["| space | tool | configs | failed | seconds | of its process | best found | its own us | again us | 95% interval |"]
    lines.append("| --- " * 10 + "|")
    for one in rows:
        if "seconds" not in one:
            lines.append(f"| {one['language']} | {one['tool']} | - | - | - | - | {one['reason'].splitlines()[-1]} | - | - | - |")
            continue
        again = ("n/a", "n/a")
        if "device_time_us" in one:
            again = f"{one['device_time_us']:.4g}", f"{one['low_us']:.4g} to {one['high_us']:.4g}"
        best = config_text(one["best"]) if one["best"] else one["reason"]
        own = "n/a" if one["best_us"] is None else f"{one['best_us']:.4g}"
        figures = (one["configs"], one["failed"], f"{one['seconds']:.1f}", f"{one['process_s']:.1f}", best, own, *again)
        lines.append(f"| {one['language']} | {one['tool']} | " + " | ".join(map(str, figures)) + " |")
    told = {f"{one['tool']} checks {one['checked']}. It times: {one['protocol']}." for one in rows if "checked" in one}
    copies = {f"{one['copy_us']:.4g}" for one in rows if one.get("copy_us")}
    return "\n".join([*lines, "", *(f"A copy of as many bytes, among the winners: {copy} us." for copy in copies), *sorted(told)])


if __name__ == "__main__":
    sys.exit(main())
