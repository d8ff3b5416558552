"""`check OP --sanitize`: kernels under compute-sanitizer, and what that can't see."""

from __future__ import annotations

from collections.abc import Sequence

from kernelyard.cli.output import emit, say
from kernelyard.registry.kernel import Kernel
from kernelyard.registry.op import Matrix, Op
from kernelyard.verify.sanitizer import LIMITS, Sanitized, ToolRun
from kernelyard.verify.sanitizer import sanitize as run
from kernelyard.verify.sanitizer_report import Finding

MOST_SHOWN = 5


def sanitize(
    op: Op, kernels: Sequence[Kernel], matrix: Matrix, device: str, tools: tuple[str, ...], timeout_s: float, *,
    as_json: bool, explicit: bool,
) -> int:  # fmt: skip
    """Runs and prints; 1 where a tool found something, where nothing could be run, or where a kernel that was named could not."""
    found = []
    for kernel in kernels:
        say(f"{kernel.name}: {', '.join(tools)}")
        found.append(run(op, kernel, matrix, device, tools, timeout_s))
        if not as_json:
            _show(found[-1])
    if as_json:
        emit({"op": op.name, "device": device, "tools": list(tools), "kernels": [one.as_dict() for one in found], "limits": list(LIMITS)})
    elif any(one.runs for one in found):
        print("what these runs can't tell:\n" + "\n".join(f"  {limit}" for limit in LIMITS))
    wrong = any(one.runs and not one.ok for one in found) or not any(one.ok for one in found)
    return 1 if wrong or (explicit and not all(one.ok for one in found)) else 0


def _show(found: Sanitized) -> None:
    if found.reason:
        return print(f"{found.kernel}: unsupported: {found.reason}")
    print(f"{found.kernel}: at {', '.join(found.points)}")
    for ran in found.runs:
        print(f"  {ran.tool}: {_outcome(ran)} ({ran.seconds:.1f} s)")
        for one in ran.findings[:MOST_SHOWN]:
            print(f"    {_told(one)}")


def _told(found: Finding) -> str:
    where = " ".join(filter(None, (found.function, f"in {found.line}" if found.line else "")))
    size = f" of {found.size} bytes" if found.size else ""
    return f"{found.kind}{size}, {found.count} times{f', at {where}' if where else ''}: {found.words}"


def _outcome(ran: ToolRun) -> str:
    return ran.problem or (f"{len(ran.findings)} kinds of findings" if ran.findings else "nothing found")
