"""What to try on a workload: which kernels, which configs first, and whether the whole space fits the budget. No torch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, product

from kernelyard.errors import KernelyardError, UnknownName, Unsupported, UsageError
from kernelyard.registry.kernel import Kernel
from kernelyard.registry.op import Op
from kernelyard.registry.registry import Registry
from kernelyard.registry.rule import distance
from kernelyard.registry.spec import Answer, Config, Workload, config_key, digest, no
from kernelyard.store.records import Entry
from kernelyard.tuner.limits import TRIALS, WHOLE

MOST_ENUMERATED = 200_000
"""Combinations that are walked through to count the valid ones: 0.2 s; a larger space is never searched whole."""

NEAR = 2
"""Stored choices of near shapes that are tried early."""


@dataclass(frozen=True)
class KernelPlan:
    """One kernel's search: `first` in order, then all of `whole`, or by the sampler's where that is None, until `budget` trials.

    `excluded` counts the combinations that constraints forbid; known only where the space was walked through.
    `digest` changes with the kernel's source, its space and the versions its backend names.
    """

    kernel: Kernel
    first: tuple[Config, ...]
    whole: tuple[Config, ...] | None
    budget: int
    excluded: int
    digest: str
    versions: Mapping[str, str]


@dataclass(frozen=True)
class Plan:
    """Everything for one workload. `references` are timed in finals only; `unchoosable` of them are there to compare with.

    `skipped` has the kernels that can't take part, each with its reason.
    """

    workload: Workload
    searches: tuple[KernelPlan, ...]
    references: tuple[Kernel, ...]
    unchoosable: frozenset[str]
    skipped: Mapping[str, str]

    @property
    def trials(self) -> int:
        """Trials at most."""
        return sum(search.budget for search in self.searches)


def is_reference(kernel: Kernel, op: Op) -> bool:
    """Whether it is the op in plain torch, or that compiled: nothing of it is tuned."""
    return kernel.name == op.fallback or kernel.backend == "compile"


def tunable(registry: Registry, op: Op, device: str) -> bool:
    """Whether an op has a frozen performance matrix for a device and a kernel there that is tuned."""
    try:
        op.matrix("performance", device)
    except UnknownName:
        return False
    mine = (kernel for kernel in registry.kernels(op.name) if not is_reference(kernel, op) and device in kernel.support.devices)
    return any(registry.can_run(kernel, device) for kernel in mine)


def plan(
    registry: Registry, op: Op, workload: Workload, trials: int | None, names: Sequence[str] | None = None, stored: Sequence[Entry] = ()
) -> Plan:
    """The plan for a workload: kernels named in `names`, or all that can run here, and the references. `trials` replaces both limits."""
    searches, references, skipped, unchoosable = [], [], {}, set()
    for kernel in registry.kernels(op.name):
        reference = is_reference(kernel, op)
        if names is not None and kernel.name not in names and not reference:
            continue
        answer = serves(registry, kernel, workload)
        if answer.timed:
            unchoosable.add(kernel.name)
            references.append(kernel)
        elif not answer:
            skipped[kernel.name] = answer.reason
        elif reference:
            references.append(kernel)
        else:
            try:
                searches.append(_search(registry, kernel, workload, trials, stored))
            except UsageError as error:
                if names is not None:
                    raise
                skipped[kernel.name] = str(error)
            except Exception as error:  # a plugin's own functions (default, hints, constraints) can raise anything
                skipped[kernel.name] = str(error) if isinstance(error, KernelyardError) else f"{type(error).__name__}: {error}"
    _refuse_unheeded(names, skipped, workload)
    references.sort(key=lambda kernel: kernel.name != op.fallback)
    return Plan(workload, tuple(searches), tuple(references), frozenset(unchoosable), skipped)


def serves(registry: Registry, kernel: Kernel, workload: Workload) -> Answer:
    """Whether a kernel can run here and supports a workload."""
    try:
        return registry.can_run(kernel, workload.device) and kernel.support.fits(workload)
    except Exception as error:  # a plugin's probe or predicate
        return no(f"its declaration raises {type(error).__name__}: {error}")


def _refuse_unheeded(names: Sequence[str] | None, skipped: Mapping[str, str], workload: Workload) -> None:
    """A kernel that was asked for by name must take part, or the run says why it can't."""
    for name in names or ():
        if name in skipped:
            raise Unsupported(f"{name} can't be tuned on {workload.label()}: {skipped[name]}.", do="Leave it out, or change the workload.")


def _search(registry: Registry, kernel: Kernel, workload: Workload, trials: int | None, stored: Sequence[Entry]) -> KernelPlan:
    space, most = kernel.space, trials or WHOLE
    walk = space.size <= MOST_ENUMERATED
    valid = tuple(islice(space.configs(workload), most + 1)) if walk else ()
    if walk and not valid:
        raise _empty(kernel, workload)
    whole = valid if walk and len(valid) <= most else None
    wanted = [*space.hints_for(workload), *near_configs(kernel, workload, stored)]
    first = {config_key(config): config for config in wanted if space.allows(config, workload)}
    versions = dict(registry.builder(kernel.backend).versions())
    identity = digest([kernel.source_hash(), space.hash(), versions])
    excluded = space.size - len(whole) if whole is not None else 0
    budget = len(whole) if whole is not None else trials or TRIALS
    return KernelPlan(kernel, tuple(first.values()), whole, budget, excluded, identity, versions)


def _empty(kernel: Kernel, workload: Workload) -> UsageError:
    """No config keeps all constraints: how much each forbids shows which contradict each other, or the workload."""
    space = kernel.space
    names, values = [parameter.name for parameter in space.parameters], [parameter.values for parameter in space.parameters]
    configs = [dict(zip(names, combination, strict=True)) for combination in product(*values)]
    forbidden = [(sum(not rule.holds(config, workload) for config in configs), rule.reason) for rule in space.constraints]
    told = "; ".join(f"'{reason}' forbids {count} of {len(configs)}" for count, reason in forbidden if count)
    asked = f"{kernel.name} can't be tuned on {workload.label()}: no config of its space keeps the constraints."
    return UsageError(asked, exists=f"{told}.", do="Change the workload, or the kernel's space.")


def near_configs(kernel: Kernel, workload: Workload, stored: Sequence[Entry]) -> list[Config]:
    """Configs that won for this kernel on the nearest stored shapes of the same dtype; `stored` is of this op and device."""
    choices = [
        (distance(workload.shapes, entry.shapes), entry.choice.config)
        for entry in stored
        if entry.choice is not None and entry.choice.kernel == kernel.name and entry.dtype == workload.dtype
    ]
    near = sorted((pair for pair in choices if math.isfinite(pair[0])), key=lambda pair: pair[0])
    return [config for _, config in near[:NEAR]]
