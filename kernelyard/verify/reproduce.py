"""A shrunk failure proved: a stand-alone script that is run, and must exit with 1 against the kernel and 0 against plain torch."""

from __future__ import annotations

import base64
import io
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from kernelyard.errors import Unsupported
from kernelyard.registry import registry
from kernelyard.registry.kernel import Kernel
from kernelyard.registry.op import Op
from kernelyard.registry.spec import Config, Status
from kernelyard.verify.check import Case
from kernelyard.verify.isolation import Worker
from kernelyard.verify.jobs import run_case
from kernelyard.verify.outcome import CaseResult
from kernelyard.verify.script import asks, compares
from kernelyard.verify.shrink import Shrunk
from kernelyard.verify.tries import TRY_S, Subject

FAULT = "kernelyard.verify.reproduce:fault_job"
SCRIPT_S = 300.0
"""For one run of a script: importing torch and plugins, a build, a case."""

Write = Callable[[Subject, str, Kernel, Config], str]


@dataclass(frozen=True)
class Reproduction:
    """A script and what its runs said. `proved`: it exits with 1 against the kernel.

    `fallback_right`: the same script with the op's fallback in the kernel's place exits with 0; None where that is the kernel itself.
    """

    path: Path
    text: str
    proved: bool
    output: str
    fallback_right: bool | None

    @property
    def lines(self) -> int:
        """Of the script."""
        return len(self.text.splitlines())


def reproduce(shrunk: Shrunk, path: Path) -> Reproduction:
    """Writes the script to `path` and runs it: a bare comparison where that shows the fault and passes plain torch, else the checker."""
    path.parent.mkdir(parents=True, exist_ok=True)
    subject = shrunk.subject
    if subject.status is Status.WRONG and subject.op.returns == 1 and not subject.op.mutated and subject.where.edge != "memory":
        made = _proved(compares, shrunk, path)
        if made.proved and made.fallback_right is not False:
            return made
    return _proved(asks, shrunk, path)


def _proved(write: Write, shrunk: Shrunk, path: Path) -> Reproduction:
    subject = shrunk.subject
    text = write(subject, shrunk.reason, subject.kernel, subject.where.config)
    path.write_text(text, encoding="utf-8")
    with ThreadPoolExecutor(1) as beside:  # most of either run is importing torch
        other = beside.submit(_fallback_right, write, shrunk)
        code, output = run_script(path)
        proved = code == 1 and "wrong:" in output  # a traceback exits with 1 too
        return Reproduction(path, text, proved, output, other.result())


def _fallback_right(write: Write, shrunk: Shrunk) -> bool | None:
    subject = shrunk.subject
    op = subject.op
    if op.fallback == subject.kernel.name:
        return None
    fallback = registry.current().kernel(op.name, op.fallback)
    config = fallback.space.default_for(op.workload(subject.where.point, subject.device))
    with tempfile.TemporaryDirectory(prefix="kernelyard-repro-") as folder:
        path = Path(folder) / "fallback.py"
        path.write_text(write(subject, shrunk.reason, fallback, config), encoding="utf-8")
        return run_script(path)[0] == 0


def run_script(path: Path) -> tuple[int, str]:
    """Exit code and output of a script, all it started killed at the end; -1 where it outlasts its time."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (os.path.abspath(entry) for entry in sys.path)))}
    process = subprocess.Popen(
        [sys.executable, str(path)], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    try:
        output, _ = process.communicate(timeout=SCRIPT_S)
    except subprocess.TimeoutExpired:
        return -1, f"still running after {SCRIPT_S:g} s"
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return process.returncode, output


# What a script calls -------------------------------------------------------------------------------


def fault(op: str, kernel: str, args: tuple[Any, ...], config: Config, *, edge: str = "random", limit_s: float = TRY_S) -> str:
    """What is wrong with a kernel on these arguments, in words; empty when nothing is.

    The check runs in a child process, so that a crash or a hang is an answer too. `edge='memory'` asks whether calls keep memory.
    """
    buffer = io.BytesIO()
    torch.save(args, buffer)
    payload = {"op": op, "kernel": kernel, "config": dict(config), "args": base64.b64encode(buffer.getvalue()).decode(), "edge": edge}
    with Worker() as worker:
        outcome = worker.run(FAULT, payload, limit_s)
    if outcome.value is None:
        return f"{outcome.status}: {outcome.reason}"
    result = CaseResult(**{**outcome.value, "status": Status(outcome.value["status"])})
    return "" if result.ok else f"{result.status}: {result.reason}"


def fault_job(payload: dict[str, Any]) -> dict[str, Any]:
    """The child's side of `fault`."""
    table = registry.current()
    op, kernel = table.op(payload["op"]), table.kernel(payload["op"], payload["kernel"])
    args = torch.load(io.BytesIO(base64.b64decode(payload["args"])), weights_only=True)
    workload = op.workload_of(args)
    if not (answer := table.can_run(kernel, workload.device, "check")):
        raise Unsupported(f"{kernel.name} can't be checked here: {answer.reason}")
    case = Case(workload, payload["edge"])
    return asdict(run_case(_with_arguments(op, args), kernel, case, payload["config"], workload.device, 0))


def _with_arguments(op: Op, args: tuple[Any, ...]) -> Op:
    """The op, its inputs of seed 0 these; runs with other data get its own."""
    return replace(op, inputs=lambda workload, generator: args if generator.initial_seed() == 0 else op.inputs(workload, generator))
