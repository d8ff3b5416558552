"""`bench`: every kernel of an op on one workload, built, checked and timed against the others, as rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kernelyard.measure.roofline import Standing
    from kernelyard.registry.kernel import Kernel
    from kernelyard.registry.op import Op
    from kernelyard.registry.registry import Registry
    from kernelyard.registry.spec import Answer, Config, Workload
    from kernelyard.tuner.bench import Bench, Item, Times
    from kernelyard.tuner.limits import Options

ABSENT = ("device_time_us", "low_us", "high_us", "call_time_us", "speedup_vs_eager", "percent_of_ceiling", "copy_us", "energy_j")


def bench_workload(
    runner: Bench, everything: Registry, op: Op, workload: Workload, names: Sequence[str], options: Options
) -> list[dict[str, Any]]:
    """Rows of one workload: those that were timed, then those that were not, with the reason."""
    items, failed = _prepared(runner, everything, op, workload, names)
    rows = _timed(runner, op, workload, items, failed, options)
    runner.keep([])
    rows.sort(key=lambda row: row["device_time_us"])
    return rows + [_row(op, workload, name) | {"reason": reason} for name, reason in sorted(failed.items())]


def items_of(everything: Registry, op: Op, workload: Workload, names: Sequence[str]) -> list[Item]:
    """What will be built for a workload."""
    found = _candidates(everything, op, workload, names)
    return [item_of(kernel, config, workload) for kernel, answer, config in found if answer or answer.timed]


def _candidates(everything: Registry, op: Op, workload: Workload, names: Sequence[str]) -> list[tuple[Kernel, Answer, Config]]:
    """The kernels asked for beside plain torch, whether each can run, and in which config.

    Plain torch is the op's baseline where that can be timed: the fallback may be many times slower, and is then nobody's other choice.
    """
    from kernelyard.registry.dispatch import as_pinned

    asked = [kernel for kernel in everything.kernels(op.name) if not names or kernel.name in (*names, op.fallback, op.baseline)]
    found = [(kernel, *as_pinned(op, kernel, workload)) for kernel in asked]
    timed = any(kernel.name == op.baseline and (answer or answer.timed) for kernel, answer, _ in found)
    plain = (op.baseline,) if timed else (op.baseline, op.fallback)
    return [one for one in found if not names or one[0].name in (*names, *plain)]


def _prepared(runner: Bench, everything: Registry, op: Op, workload: Workload, names: Sequence[str]) -> tuple[list[Item], dict[str, str]]:
    """What is built and right, and why the others are not."""
    from kernelyard.registry.spec import Status

    items, failed = [], dict[str, str]()
    for kernel, answer, config in _candidates(everything, op, workload, names):
        item = item_of(kernel, config, workload)
        if answer.timed:
            items.append(item)  # outside the contract, so not checked: it is there to compare with
        elif not answer:
            failed[kernel.name] = answer.reason
        elif (result := runner.prepare(item)).status is Status.OK:
            items.append(item)
        else:
            failed[kernel.name] = f"{result.status}: {result.reason}"
    return items, failed


def item_of(kernel: Kernel, config: Config, workload: Workload) -> Item:
    """What is timed; torch and compiled torch may build in their first call."""
    from kernelyard.tuner.bench import Item

    return Item(kernel.name, config, workload, patient=kernel.backend in ("torch", "compile"))


def _timed(
    runner: Bench, op: Op, workload: Workload, items: Sequence[Item], failed: dict[str, str], options: Options
) -> list[dict[str, Any]]:
    """A row for each item whose time can be believed; the others are added to `failed`."""
    from kernelyard.measure.roofline import ceilings, standing
    from kernelyard.tuner.bench import Result

    if not items:
        return []
    device = runner.time(items, options, ceiling=True)
    if isinstance(device, Result):
        failed.update({item.kernel: f"{device.status}: {device.reason}" for item in items})
        return []
    call = runner.time(items, {"budget_s": options["budget_s"] / 2}, mode="call")
    called = {} if isinstance(call, Result) else {name: timing.median_us for name, timing in call.timings.items()}
    failed.update({item.kernel: device.impossible[item.id] for item in items if item.id in device.impossible})
    cost, found = op.cost(workload), ceilings(workload.device)
    stands = {i: standing(cost, timing, workload.dtype, found, device.copy_us) for i, timing in device.timings.items()}
    plain = {item.kernel: item for item in items}
    eager = plain.get(op.baseline) or plain.get(op.fallback)
    return [
        _row(op, workload, item.kernel) | _times(device, item, eager, stands[item.id])
        | {"call_time_us": called.get(item.id), "resources": runner.resources(item)}
        for item in items if item.kernel not in failed
    ]  # fmt: skip


def _times(device: Times, item: Item, eager: Item | None, stands: Standing) -> dict[str, Any]:
    from kernelyard.measure.stats import ratio_interval

    timing = device.timings[item.id]
    faster = ratio_interval(device.samples[eager.id], device.samples[item.id]) if eager else None
    return {
        "config": dict(item.config),
        "device_time_us": timing.median_us,
        "low_us": timing.low_us,
        "high_us": timing.high_us,
        "clock": timing.clock,
        "batches": timing.batches,
        "calls": timing.calls,
        "noisy": timing.noisy,
        "notes": device.notes[item.id],
        "speedup_vs_eager": None if faster is None else {"median": faster.median, "low": faster.low, "high": faster.high},
        "percent_of_ceiling": None if stands.percent is None else round(stands.percent, 1),
        "ceiling_note": stands.above,
        "copy_us": device.copy_us,
        "energy_j": device.energy.get("joules", {}).get(item.id),
        "no_energy": device.energy.get("absent", ""),
    }


def _row(op: Op, workload: Workload, kernel: str) -> dict[str, Any]:
    return {
        "op": op.name,
        "workload": {"shapes": workload.shapes, "dtype": workload.dtype},
        "label": workload.label(),
        "kernel": kernel,
        "config": {},
        **dict.fromkeys(ABSENT),
        "reason": "",
    }
