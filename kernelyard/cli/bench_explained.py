"""`bench --explain`: what each time means, in three sentences, and what Nsight Compute counts where it may."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from kernelyard.cli.output import say
from kernelyard.errors import MeasurementFailed

if TYPE_CHECKING:
    from kernelyard.measure.bound import Cpu, Gpu
    from kernelyard.registry.op import Op, Point
    from kernelyard.tuner.bench import Bench

COUNTED = {
    "duration_us": "duration {:.4g} us", "dram_percent": "DRAM {:.0f}% of its peak", "sm_percent": "SMs {:.0f}% of theirs",
    "occupancy_percent": "achieved occupancy {:.0f}%", "l2_hit_percent": "L2 hits {:.0f}%",
}  # fmt: skip


def explain(runner: Bench, op: Op, device: str, points: Sequence[Point], rows: Sequence[dict[str, Any]]) -> None:
    """Adds to each timed row `explained`, its three sentences, and on a GPU `counters`, or in `no_counters` why there are none."""
    facts = runner.facts(device)
    by_label = {op.workload(point, device).label(): point for point in points}
    for row in rows:
        if row["device_time_us"] is not None:
            row["explained"] = _sentences(op, device, by_label[row["label"]], row, facts)
            if device == "cuda":
                row.update(_counted(op, by_label[row["label"]], row))


def show(rows: Sequence[Mapping[str, Any]]) -> None:
    """The sentences, under the table."""
    for row in rows:
        if "explained" in row:
            print(f"\n{row['label']}: {row['kernel']}")
            print("\n".join(f"  {sentence}" for sentence in row["explained"]))
            if line := _counter_line(row):
                print(f"  {line}")


def _sentences(op: Op, device: str, point: Point, row: Mapping[str, Any], facts: Mapping[str, Any]) -> list[str]:
    from kernelyard.measure import bound
    from kernelyard.measure.roofline import ceilings, limit_us
    from kernelyard.registry.spec import Timing

    workload, found, copy_us = op.workload(point, device), ceilings(device), row["copy_us"]
    timing = Timing(row["device_time_us"], row["low_us"], row["high_us"], "device", row["clock"], row["batches"], row["calls"])
    return list(bound.explain(
        op, workload, timing, resources=row["resources"], limit_us=limit_us(op.cost(workload), workload.dtype, found, copy_us),
        copy_us=copy_us, ceilings=found, facts=_facts(device, row, facts),
    ))  # fmt: skip


def _facts(device: str, row: Mapping[str, Any], facts: Mapping[str, Any]) -> Cpu | Gpu:
    """A kernel that has its own number of threads in its config runs on these, others on torch's."""
    from kernelyard.measure.bound import Cpu, Gpu
    from kernelyard.measure.occupancy import Multiprocessor

    if device == "cuda":
        machine = facts["multiprocessor"]
        return Gpu(Multiprocessor(**machine) if machine else None, facts["empty_us"])
    return Cpu(int(row["config"].get("threads", facts["threads"])), facts["cache_bytes"])


def _counted(op: Op, point: Point, row: Mapping[str, Any]) -> dict[str, Any]:
    from kernelyard.measure import device, ncu
    from kernelyard.registry.machine import identity
    from kernelyard.registry.matrix import point_payload

    if not (answer := ncu.available()):
        return {"counters": None, "no_counters": answer.reason}
    say(f"{row['label']}: ncu counts {row['kernel']}")
    try:
        with device.lock(identity("cuda"), say):
            counters = ncu.counters(op.name, row["kernel"], row["config"], point_payload(point))
    except MeasurementFailed as error:
        return {"counters": None, "no_counters": str(error)}
    return {"counters": asdict(counters), "no_counters": ""}


def _counter_line(row: Mapping[str, Any]) -> str:
    counters = row.get("counters")
    if counters is None:
        return f"No hardware counters: {row['no_counters']}" if row.get("no_counters") else ""
    told = [form.format(counters[name]) for name, form in COUNTED.items() if counters[name] is not None]
    return f"By ncu: {', '.join(told)}." if told else "ncu told none of the counters."
