"""Recording a space: every valid config built, checked and timed through the tuner's own trial, and kept in a file."""

from __future__ import annotations

from collections.abc import Callable

from kernelyard.errors import UsageError
from kernelyard.measure.measured import PROTOCOL
from kernelyard.registry.kernel import Kernel
from kernelyard.registry.registry import Registry
from kernelyard.registry.spec import DeviceIdentity, Workload, config_key
from kernelyard.store.records import now
from kernelyard.store.results import commit, versions
from kernelyard.tuner import ahead
from kernelyard.tuner.bench import Bench, Finished, Item
from kernelyard.tuner.limits import Limits
from kernelyard.tuner.plan import MOST_ENUMERATED
from kernelyard.tuner.spaces import Recorded
from kernelyard.verify.isolation import Worker

Told = Callable[[int, int, Finished], None]
"""(done, total, the trial that ended)"""


def record(
    registry: Registry, kernel: Kernel, workload: Workload, device: DeviceIdentity, told: Told, limits: Limits | None = None
) -> Recorded:
    """Try every valid config once; builds run ahead. Raises UsageError where the kernel can't run it, or there are too many or none."""
    space, limits = kernel.space, limits or Limits()
    if not (answer := registry.can_run(kernel, workload.device) and kernel.support.fits(workload)):
        raise UsageError(f"{kernel.name} can't be recorded on {workload.label()}: {answer.reason}.")
    if space.size > MOST_ENUMERATED:
        raise UsageError(f"{kernel.name} has {space.size} combinations; up to {MOST_ENUMERATED} can be walked through.")
    configs = list(space.configs(workload))
    if not configs:
        raise UsageError(f"no config of {kernel.name} keeps its constraints on {workload.label()}.", do="Give another shape.")
    items = [Item(kernel.name, config, workload) for config in configs]
    trials = []
    ahead.build(items, limits, ahead.processes(len(items)))
    with Worker(memory=limits.memory(workload.device)) as worker:
        bench = Bench(worker, limits)
        for item in items:
            trials.append(Finished(item.config, bench.trial(item, limits.trial)))
            told(len(trials), len(configs), trials[-1])
    wanted = {config_key(config): config for config in space.hints_for(workload) if space.allows(config, workload)}
    about = {"source_hash": kernel.source_hash(), "protocol": PROTOCOL, "versions": versions(), "commit": commit(), "recorded_at": now()}
    return Recorded(kernel.name, workload, device.key(), space.hash(), space.parameters, tuple(wanted.values()), tuple(trials), about)
