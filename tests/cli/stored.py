"""Choices in the home of a test: of a real op and kernel on this machine's CPU, valid unless changed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kernelyard.registry import registry
from kernelyard.registry.machine import identity
from kernelyard.registry.matrix import Point
from kernelyard.registry.spec import Choice, Workload
from kernelyard.store.choices import listed
from kernelyard.store.database import open_store
from kernelyard.store.records import Entry, Run

EVIDENCE: dict[str, Any] = {"device_time_us": {"median": 3.5, "low": 3.4, "high": 3.7}}


def workload(rows: int = 3, cols: int = 8) -> Workload:
    return registry.current().op("rmsnorm").workload(Point((rows, cols), "float32"))


def choice(of: Workload, kernel: str = "cpp.onepass", **changes: Any) -> Choice:
    everything = registry.current()
    op, chosen = everything.op("rmsnorm"), everything.kernel("rmsnorm", kernel)
    whole = Choice(
        "rmsnorm", of.key(), identity("cpu").key(), "device", kernel, chosen.space.default_for(of), op.contract_hash(),
        chosen.source_hash(), chosen.space.hash(), dict(everything.builder(chosen.backend).versions()), "run-1", "fastest",
    )  # fmt: skip
    return replace(whole, **changes)


def save(of: Workload | None = None, kernel: str = "cpp.onepass", evidence: dict[str, Any] = EVIDENCE, **changes: Any) -> Choice:
    """Store a choice; its run is stored with it."""
    one = choice(of or workload(), kernel, **changes)
    with open_store() as store:
        if one.run_id and one.run_id not in {run["id"] for run in store.runs()}:
            command = "kernelyard tune rmsnorm"
            store.save_run(Run(one.run_id, "tune", "tune rmsnorm", command, identity("cpu"), started_at="2026-01-01T00:00:00Z"))
        store.save_choice(one, of or workload(), evidence)
    return one


def entry() -> Entry:
    (only,) = listed()
    return only
