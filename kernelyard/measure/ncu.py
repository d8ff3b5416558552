"""A kernel's own launches as Nsight Compute (ncu) sees them: their time without any launch around them, and hardware counters.

ncu runs the kernel in a process of its own (`ncu_child`) and leaves the clocks alone (--clock-control none). Its times come from the
GPU's own timer and so check the other clocks. The caller holds the device's lock.

`counters` need several passes over each launch, and ncu empties the caches before every one (--cache-control all). An L2 without a
line is a state that no running program meets, and a kernel may be 10% faster in it (one that marks all it touches evict_first, on an
H200: it evicts nobody else's lines and works in what room there is). So `duration_us` asks for the time alone, which takes one pass,
and has the L2 filled with other data before each launch, as our own clock of single calls does.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from kernelyard.errors import MeasurementFailed
from kernelyard.measure.ncu_csv import Launch, parse
from kernelyard.registry.spec import Answer

DURATION = "gpu__time_duration.sum"
PERCENT = {
    "dram_percent": "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
    "sm_percent": "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    "occupancy_percent": "sm__warps_active.avg.pct_of_peak_sustained_active",
    "l2_hit_percent": "lts__t_sector_hit_rate.pct",
}
OPTIONS = (
    "--csv", "--page", "raw", "--print-units", "base", "--clock-control", "none",
    "--profile-from-start", "off", "--target-processes", "application-only",
)  # fmt: skip
"""Base units, as others are rounded to two decimals; compilers that the kernel's process starts are not profiled."""
USUAL = ("/usr/local/cuda*/bin", "/opt/nvidia/nsight-compute/*")

Payload = Sequence[Any]
"""A point as JSON: [dims, dtype, layout, [[name, scalar], ...]]."""


@dataclass(frozen=True, slots=True)
class Counters:
    """Of one call; None where ncu did not tell. Percent of what the GPU sustains at its peak, over the kernel's time.

    `occupancy_percent` is the warps that were active on SMs with work, as a share of the most that an SM holds; `l2_hit_percent` the
    sectors found in L2. Of a call that launches several kernels the time is their sum and a percentage their mean, by time.
    """

    duration_us: float | None
    dram_percent: float | None
    sm_percent: float | None
    occupancy_percent: float | None
    l2_hit_percent: float | None


def available() -> Answer:
    """Whether ncu is here. Whether it may read counters shows only when it runs: many machines allow that to root alone."""
    program, looked_in = _find()
    return Answer(program is not None, "" if program else _missing(looked_in))


def duration_us(
    op_name: str, kernel_name: str, config: Mapping[str, Any], point_payload: Payload, launches: int = 10, *, timeout_s: float = 300.0
) -> float:
    """Median time of one call on the device in microseconds, L2 full of other data; raises MeasurementFailed."""
    found = _profile([DURATION], op_name, kernel_name, config, point_payload, launches, timeout_s, flush=True)
    duration = summed(found, launches).duration_us
    if duration is None:
        raise MeasurementFailed(f"ncu read no time of {kernel_name}.", do="See whether `ncu --query-metrics` lists gpu__time_duration.")
    return duration


def counters(
    op_name: str, kernel_name: str, config: Mapping[str, Any], point_payload: Payload, launches: int = 10, *, timeout_s: float = 300.0
) -> Counters:
    """Medians over the launches, each with empty caches; raises MeasurementFailed."""
    metrics = [DURATION, *PERCENT.values()]
    return summed(_profile(metrics, op_name, kernel_name, config, point_payload, launches, timeout_s, flush=False), launches)


def summed(found: Sequence[Launch], launches: int) -> Counters:
    """Rows of a profile as one call's figures. Where calls launch unlike numbers of kernels, all rows are one group and times are means."""
    each, rest = divmod(len(found), launches)
    alike = each > 0 and rest == 0
    calls = [found[i : i + each] for i in range(0, len(found), each)] if alike else [found]
    times = [sum(row[DURATION] for row in call) for call in calls if all(DURATION in row for row in call)]
    duration = None if not found or not times else median(times) if alike else times[0] / launches
    return Counters(duration, **{field: _percent(calls, name) for field, name in PERCENT.items()})


def _percent(calls: Sequence[Sequence[Launch]], name: str) -> float | None:
    """Median over the calls of the mean over a call's kernels, weighted by their time."""
    means = []
    for call in calls:
        told = [(row[name], row.get(DURATION, 0.0)) for row in call if name in row]
        if weight := sum(time for _, time in told):
            means.append(sum(value * time for value, time in told) / weight)
    return median(means) if means else None


def _profile(
    metrics: Sequence[str], op_name: str, kernel_name: str, config: Mapping[str, Any], point: Payload, launches: int, timeout_s: float,
    *, flush: bool,
) -> list[Launch]:
    program, looked_in = _find()
    if program is None:
        raise MeasurementFailed(f"{_missing(looked_in)}.")
    payload = {
        "op": op_name, "kernel": kernel_name, "config": dict(config), "point": list(point), "device": "cuda", "launches": launches,
        "flush": flush,
    }  # fmt: skip
    child = [sys.executable, "-P", "-m", "kernelyard.measure.ncu_child", json.dumps(payload)]
    options = [*OPTIONS, "--cache-control", "none" if flush else "all", "--metrics", ",".join(metrics)]
    output, errors = _run([str(program), *options, *child], kernel_name, timeout_s)
    found = parse(output)
    if not found:
        raise _no_launches(kernel_name, f"{output}\n{errors}")
    return found


def _run(command: Sequence[str], kernel_name: str, timeout_s: float) -> tuple[str, str]:
    """(stdout, stderr) of ncu, which is killed with all that it started when the time is up."""
    path = os.pathsep.join(os.path.abspath(entry) for entry in sys.path)
    environment = {name: value for name, value in os.environ.items() if name != "LC_ALL"}
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace",
        start_new_session=True, env={**environment, "PYTHONPATH": path, "LC_NUMERIC": "C"},  # else a comma may be a decimal point
    )  # fmt: skip
    try:
        return process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired as error:
        do = "Profile a smaller workload, or fewer launches."
        raise MeasurementFailed(f"ncu was still profiling {kernel_name} after {timeout_s:g} s and was killed.", do=do) from error
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


def _no_launches(kernel_name: str, output: str) -> MeasurementFailed:
    """Why the profile is empty, in ncu's words where it has any."""
    asked = f"ncu profiled no launch of {kernel_name}."
    if "ERR_NVGPUCTRPERM" in output:
        do = "Run as root, or have an administrator load the driver with NVreg_RestrictProfilingToAdminUsers=0."
        return MeasurementFailed(asked, exists="This user may not read the GPU's counters (ERR_NVGPUCTRPERM).", do=do)
    said = [line for line in output.splitlines() if line.strip() and not line.startswith("==PROF==")]
    return MeasurementFailed(asked, exists="It said: " + " / ".join(said[-6:])[-800:] if said else "It said nothing.")


def _find() -> tuple[Path | None, tuple[str, ...]]:
    """ncu of PATH, else of CUDA_HOME, else the newest of the usual folders; and where was looked."""
    folders = [folder for pattern in USUAL for folder in sorted(Path("/").glob(pattern.lstrip("/")), reverse=True)]
    home, looked_in = os.environ.get("CUDA_HOME"), ["PATH"]
    if home:
        folders.insert(0, Path(home) / "bin")
        looked_in.append(f"CUDA_HOME={home}")
    candidates = (shutil.which("ncu"), *(shutil.which("ncu", path=str(folder)) for folder in folders))
    found = next(filter(None, candidates), None)
    return Path(found) if found else None, (*looked_in, *USUAL)


def _missing(looked_in: Sequence[str]) -> str:
    return f"ncu not found (looked in {', '.join(looked_in)}): install Nsight Compute, or put its folder on PATH"
