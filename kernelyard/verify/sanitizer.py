"""A kernel under NVIDIA's compute-sanitizer: memcheck, racecheck, initcheck around a process that launches it on a few small points.

What it can't see, and so what a clean run does not say, is in `LIMITS`; every report carries that.
"""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from kernelyard.registry.kernel import Kernel
from kernelyard.registry.op import Matrix, Op, Point
from kernelyard.verify.sanitizer_program import command, find_sanitizer
from kernelyard.verify.sanitizer_report import Finding, parse

TOOLS: Mapping[str, str] = MappingProxyType(
    {
        "memcheck": "accesses of global, shared and local memory that are out of bounds or misaligned",
        "racecheck": "races between threads of a block on shared memory",
        "initcheck": "reads of global memory that nothing has written",
    }
)
LIMITS = (
    "CUDA devices only",
    "racecheck sees shared memory alone: a race on global memory is not found, nor one between blocks",
    "initcheck sees global memory alone",
    "memcheck knows whole allocations: torch's caching allocator would hide a store past a tensor inside its block, so it is off here "
    "(PYTORCH_NO_CUDA_MEMORY_CACHING=1), and allocations are padded",
    "a finding in a Triton kernel has a source line only where Triton compiled it with line information (TRITON_DISABLE_LINE_INFO=0)",
    "only the points named were run: kernels are 10 to 100 times slower so",
)
MOST_POINTS, LEAST_ELEMENTS, MOST_ELEMENTS = 3, 64, 1 << 14
LAUNCHED = "kernelyard-launched"


@dataclass(frozen=True)
class ToolRun:
    """One tool over the points. `problem` says why its answer is no answer; else no findings means that it saw none."""

    tool: str
    findings: tuple[Finding, ...] = ()
    seconds: float = 0.0
    problem: str = ""

    @property
    def clean(self) -> bool:
        """Whether it ran to the end and found nothing."""
        return not self.problem and not self.findings


@dataclass(frozen=True)
class Sanitized:
    """A kernel under several tools. `reason` says why it could not be run at all; it is not `ok` then."""

    op: str
    kernel: str
    points: tuple[str, ...] = ()
    runs: tuple[ToolRun, ...] = ()
    reason: str = ""

    @property
    def ok(self) -> bool:
        """Whether every tool ran and found nothing."""
        return bool(self.runs) and all(run.clean for run in self.runs)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        status = "unsupported" if self.reason else "ok" if self.ok else "wrong" if any(run.findings for run in self.runs) else "crashed"
        return {**asdict(self), "ok": self.ok, "status": status}


def points_for(op: Op, kernel: Kernel, matrix: Matrix, device: str) -> tuple[Point, ...]:
    """A few small points with a ragged tail and one without, contiguous, as the kernel declares them."""
    from kernelyard.verify.check import fits

    small = sorted((p for p in matrix.points if p.layout == "contiguous" and 0 not in p.dims), key=lambda p: math.prod(p.dims))
    fitting = [p for p in small if math.prod(p.dims) <= MOST_ELEMENTS and fits(kernel, op.workload(p, device))]
    roomy = [p for p in fitting if math.prod(p.dims) >= LEAST_ELEMENTS] or fitting
    ragged = [p for p in roomy if p.dims[-1] % 8]
    even = [p for p in roomy if p.dims[-1] % 8 == 0]
    chosen = dict.fromkeys([*ragged[:1], *ragged[len(ragged) // 2 :][:1], *even[-1:]])
    return tuple(chosen)[:MOST_POINTS]


def sanitize(op: Op, kernel: Kernel, matrix: Matrix, device: str, tools: Sequence[str], timeout_s: float) -> Sanitized:
    """Each tool in turn around a process of its own; all of them together take at most `timeout_s`."""
    from kernelyard.registry import registry

    if device != "cuda":
        return Sanitized(op.name, kernel.name, reason=f"compute-sanitizer watches CUDA kernels; this device is {device}")
    if not (answer := registry.current().can_run(kernel, device)):
        return Sanitized(op.name, kernel.name, reason=answer.reason)
    search = find_sanitizer()
    if search.program is None:
        return Sanitized(op.name, kernel.name, reason=search.reason())
    points = points_for(op, kernel, matrix, device)
    if not points:
        return Sanitized(op.name, kernel.name, reason=f"no point of {matrix.name} is inside its declared support and small enough")
    deadline = time.monotonic() + timeout_s
    runs = [_run(search.program, tool, op, kernel, points, max(deadline - time.monotonic(), 1.0)) for tool in tools]
    return Sanitized(op.name, kernel.name, tuple(op.workload(p, device).label() for p in points), tuple(runs))


def _run(program: Path, tool: str, op: Op, kernel: Kernel, points: Sequence[Point], limit_s: float) -> ToolRun:
    started = time.monotonic()
    path = os.pathsep.join(os.path.abspath(entry) for entry in sys.path)
    process = subprocess.Popen(
        command(program, tool, op.name, kernel.name, points), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, errors="replace", start_new_session=True, env={**os.environ, "PYTHONPATH": path, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"},
    )  # fmt: skip
    try:
        output, _ = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        return ToolRun(tool, (), time.monotonic() - started, f"still running after {limit_s:.0f} s; killed")
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return judged(tool, output, process.returncode, len(points), time.monotonic() - started)


def judged(tool: str, output: str, code: int, points: int, seconds: float) -> ToolRun:
    """What one run says. Silence is clean only with the tool's own summary of 0 and every launch done."""
    parsed = parse(output)
    if parsed.findings:
        return ToolRun(tool, parsed.findings, seconds)
    tail = "\n".join(line for line in output.strip().splitlines()[-8:])
    if parsed.errors is None:
        return ToolRun(tool, (), seconds, f"it ended with code {code} and without its summary:\n{tail}")
    if parsed.errors:
        return ToolRun(tool, (), seconds, f"it counts {parsed.errors} errors and prints none that could be read:\n{tail}")
    if output.count(LAUNCHED) != points or code:
        return ToolRun(tool, (), seconds, f"{output.count(LAUNCHED)} of {points} launches were made (code {code}):\n{tail}")
    return ToolRun(tool, (), seconds)
