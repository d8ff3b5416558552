"""What a Ray actor does with the one device that it has: what `Here` does, asked from elsewhere. Runs in Ray's worker process."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from kernelyard.errors import KernelyardError
from kernelyard.registry import registry as registries
from kernelyard.registry.machine import identity
from kernelyard.registry.op import Op
from kernelyard.registry.registry import Registry
from kernelyard.registry.spec import DeviceIdentity, Workload, digest
from kernelyard.store.records import Entry
from kernelyard.tuner.answers import Asked, answers
from kernelyard.tuner.bench import Bench, Item, Result
from kernelyard.tuner.hands import Here
from kernelyard.tuner.keeping import Kept
from kernelyard.tuner.plan import Plan, plan
from kernelyard.tuner.search import Searched
from kernelyard.verify.isolation import Worker

RESOURCES = {"cpu": "CPU", "cuda": "GPU"}
"""What Ray calls a device of each type."""

T = TypeVar("T")
Spent = Mapping[str, float]
"""Seconds by build, check and time."""


@dataclass(frozen=True)
class Greeting:
    """Which device an actor has, and whether it tunes what the caller means. `problem`: why it can't."""

    device: DeviceIdentity | None
    sources: str
    problem: str = ""


def sources(registry: Registry, op: Op) -> str:
    """A hash of all that an op and its kernels are: equal where the same is installed."""
    return digest([op.contract_hash(), sorted((one.name, one.source_hash(), one.space.hash()) for one in registry.kernels(op.name))])


class RayDevice:
    """An actor's state: `asked` are the parts of a request that can travel."""

    def __init__(self, op: str, device: str, asked: Mapping[str, Any]) -> None:
        self._op, self._device, self._parts = op, device, dict(asked)
        # Ray gives each worker as many threads as it has CPUs; the kernels of a CPU, and torch beside them, have the machine's.
        if os.environ.get("OMP_NUM_THREADS") == "1":
            del os.environ["OMP_NUM_THREADS"]

    def greet(self) -> Greeting:
        """Look at the device and what is installed; opens nothing."""
        try:
            everything = registries.current()
            op, device = everything.op(self._op), identity(self._device)
        except (KernelyardError, OSError) as error:
            return Greeting(None, "", str(error))
        asked = Asked(op=op, registry=everything, device=device, storage=None, **self._parts)
        worker = Worker(memory=asked.limits.memory(device.type, _beside(device.type)))
        self._here = Here(asked, Bench(worker, asked.limits))
        return Greeting(device, sources(everything, op))

    def plan(self, workload: Workload, near: Sequence[Entry]) -> Plan:
        """What to try on this device."""
        asked = self._here.asked
        return plan(asked.registry, asked.op, workload, asked.trials, asked.kernels, near)

    def answers(self, standing: Entry, plan: Plan) -> bool:
        """Whether a stored choice answers what is asked."""
        asked = self._here.asked
        return bool(answers(standing, asked.op, plan, asked.registry, asked.kernels))

    def trial(self, item: Item) -> tuple[Result, Spent]:
        """One trial, in a child of this process."""
        return self._timed(lambda: self._here.trial(item))

    def decided(self, plan: Plan, found: Mapping[str, Searched], standing: Entry | None, interrupted: bool) -> tuple[Kept, Spent]:
        """Finals, and what is to be stored."""
        return self._timed(lambda: self._here.decided(plan, found, standing, interrupted=interrupted))

    def _timed(self, work: Callable[[], T]) -> tuple[T, Spent]:
        before = dict(self._here.spent)
        done = work()
        return done, {step: seconds - before[step] for step, seconds in self._here.spent.items()}


def _beside(device: str) -> int:
    """The devices of this type on this node: as many actors may share its memory."""
    import ray

    cluster: Any = ray  # whose function has no types
    mine = ray.get_runtime_context().get_node_id()
    found = [node["Resources"].get(RESOURCES[device], 1) for node in cluster.nodes() if node["NodeID"] == mine]
    return max(1, *map(int, found))
