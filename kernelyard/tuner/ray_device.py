"""What a Ray actor does with the one device that it has: what `Here` does, asked from elsewhere. Runs in Ray's worker process."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

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
        self._here = Here(asked, Bench(Worker(), asked.limits))
        return Greeting(device, sources(everything, op))

    def plan(self, workload: Workload, near: Sequence[Entry]) -> Plan:
        """What to try on this device."""
        asked = self._here.asked
        return plan(asked.registry, asked.op, workload, asked.trials, asked.kernels, near)

    def answers(self, standing: Entry, plan: Plan) -> bool:
        """Whether a stored choice answers what is asked."""
        asked = self._here.asked
        return bool(answers(standing, asked.op, plan, asked.registry, asked.kernels))

    def trial(self, item: Item) -> Result:
        """One trial, in a child of this process."""
        return self._here.trial(item)

    def decided(self, plan: Plan, found: Mapping[str, Searched], standing: Entry | None) -> Kept:
        """Finals, and what is to be stored."""
        return self._here.decided(plan, found, standing)
