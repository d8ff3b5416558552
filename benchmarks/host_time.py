"""What a call costs the host: of a bound kernel, of the same kernel through kernelyard's dispatch, with and without `out=`.

    python benchmarks/host_time.py [--device cuda] [--kernel triton.row] [--save NAME]

rmsnorm of one row of 4096 bf16 elements. Rows: `bound` is the built kernel's own callable, `dispatch` is kernelyard.ops.rmsnorm pinned
to that kernel; `out=` writes into given tensors. torch.add and torch's rms_norm are shown beside them. On a GPU, time until the call has
returned, the device not waited for; and, as `events`, device time between two events around one call after a flush.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch

import kernelyard
from kernelyard.cli.output import show_and_save
from kernelyard.errors import KernelyardError
from kernelyard.measure import clocks, device
from kernelyard.measure.arguments import rotation
from kernelyard.measure.interleave import Plan, interleave
from kernelyard.measure.measured import Measured
from kernelyard.registry import registry
from kernelyard.registry.backend import Executable
from kernelyard.registry.dispatch import as_pinned
from kernelyard.registry.machine import check_device, identity
from kernelyard.registry.matrix import Point

POINT = Point((1, 4096), "bfloat16")
PLAN = Plan(batches=5, most_batches=10, budget_s=1.0, warm_up_s=0.3)


def main() -> int:
    """Time all, print them, keep them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", help="cpu or cuda (this machine's)")
    parser.add_argument("--kernel", help="a kernel of rmsnorm (the first that can run)")
    parser.add_argument("--save", metavar="NAME", help="write experiments/<date>-NAME")
    asked = parser.parse_args()
    try:
        where = check_device(asked.device)
        rows = measured(where, asked.kernel)
    except KernelyardError as error:
        print(error, file=sys.stderr)
        return 2
    show_and_save(asked.save, rows, device=identity(where), text=table(rows), about=__doc__)
    return 0


def measured(device_type: str, kernel_name: str | None) -> list[dict[str, Any]]:
    """One row for each candidate: call time, and on a GPU the time between events."""
    op = registry.current().op("rmsnorm")
    workload = op.workload(POINT, device_type)
    kernel = registry.current().kernel("rmsnorm", kernel_name) if kernel_name else kernelyard_choice(workload)
    answer, config = as_pinned(op, kernel, workload)
    if not answer:
        raise KernelyardError(f"{kernel.name} can't run {workload.label()}: {answer.reason}.")
    built = registry.current().build(kernel, workload, config)
    with kernelyard.use(rmsnorm=kernel.name), torch.inference_mode(), device.lock(identity(device_type)):
        sets = rotation(op, workload)
        calls = {name: (one, sets) for name, one in candidates(built, sets.sets[0][0]).items()}
        host = _interleaved(clocks.stopwatches(calls, device_type, "call"), "call", device_type)
        events: Measured | None = None
        if device_type == "cuda":
            from kernelyard.measure.cuda import event_time

            events = _interleaved({name: event_time(one, sets) for name, (one, _) in calls.items()}, "device", device_type)
    return [_row(name, kernel.name, dict(config), host, events) for name in calls]


def kernelyard_choice(workload: Any) -> Any:
    """The kernel that dispatch selects."""
    from kernelyard.registry.dispatch import select

    return select(registry.current().op("rmsnorm"), workload).kernel


def candidates(built: Executable, outputs: tuple[torch.Tensor, ...]) -> dict[str, Executable]:
    """What is timed, by name; each takes rmsnorm's arguments."""
    op, out = kernelyard.ops.rmsnorm, outputs[0]
    norm, into = torch.nn.functional.rms_norm, built.into

    def given(x: Any, w: Any, eps: Any, offset: Any, casting: Any) -> Any:
        return op(x, w, eps, out=out)

    def bound_given(*args: Any) -> Any:
        assert into is not None
        into(outputs, *args)

    found: dict[str, Callable[..., Any]] = {
        "bound": built.call,
        "dispatch": lambda x, w, eps, offset, casting: op(x, w, eps),
        "dispatch, out=": given,
        "torch.add": lambda x, w, *rest: torch.add(x, x),
        "torch rms_norm": lambda x, w, eps, *rest: norm(x, (4096,), w, eps),
        "empty function": lambda *args: None,
    }
    if into is not None:
        found["bound, out="] = bound_given
    return {name: Executable(call) for name, call in found.items()}


def _interleaved(watches: Mapping[str, Any], mode: Any, device_type: str) -> Measured:
    return interleave(watches, PLAN, mode, device.guard(identity(device_type)))


def _row(name: str, kernel: str, config: Mapping[str, Any], host: Measured, events: Measured | None) -> dict[str, Any]:
    timing = host[name]
    row = {
        "op": "rmsnorm", "workload": "1x4096 bf16", "candidate": name, "kernel": kernel, "config": config, "call_us": timing.median_us,
        "call_low_us": timing.low_us, "call_high_us": timing.high_us, "noisy": timing.noisy, "conditions": host.conditions,
    }  # fmt: skip
    return row | ({"events_us": events[name].median_us} if events else {})


def table(rows: list[dict[str, Any]]) -> str:
    """For people, as Markdown."""
    events = "events_us" in rows[0]
    lines = [f"kernel: {rows[0]['kernel']}", "", f"| candidate | call us | 95% |{' between events us |' if events else ''}"]
    lines.append("| --- | --- | --- |" + (" --- |" if events else ""))
    for row in rows:
        interval = f"{row['call_low_us']:.2f} to {row['call_high_us']:.2f}"
        last = f" {row['events_us']:.2f} |" if events else ""
        lines.append(f"| {row['candidate']} | {row['call_us']:.2f} | {interval} |{last}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
