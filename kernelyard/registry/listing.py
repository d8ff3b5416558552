"""The table that `kernelyard list` shows: every op, kernel and plugin, and whether it can run here. Imports no torch and no stranger."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from kernelyard.registry import discovery
from kernelyard.registry.answer import Answer, no
from kernelyard.registry.description import Description, describe
from kernelyard.registry.discovery import Problem
from kernelyard.registry.probing import probed


@dataclass(frozen=True, slots=True)
class ListedKernel:
    """One kernel as `kernelyard list` shows it."""

    name: str
    op: str
    backend: str
    plugin: str
    available: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Listing:
    """Every op, kernel and plugin that is installed, and what is wrong with the rest."""

    ops: tuple[tuple[str, str, str], ...]
    kernels: tuple[ListedKernel, ...]
    plugins: tuple[Description, ...]
    problems: tuple[Problem, ...]


def listing(device: str, say: Callable[[str], None] = lambda text: None) -> Listing:
    """The table for one device type. Names that clash belong to the first plugin, built-in ones before others."""
    points, problems = discovery.entry_points()
    described = [describe(point, say) for point in discovery.allowed(points)]
    table = _Table([*problems, *(one for one in described if isinstance(one, Problem))])
    plugins = tuple(one for one in described if isinstance(one, Description))
    for plugin in plugins:
        table.add(plugin)
    for plugin in plugins:
        table.add_kernels(plugin, device)
    ordered = tuple(sorted(table.kernels.values(), key=lambda k: (list(table.ops).index(k.op), k.name)))
    return Listing(tuple(table.ops.values()), ordered, plugins, tuple(table.problems))


class _Table:
    """What `registry.Registry` is, made of names alone."""

    def __init__(self, problems: list[Problem]) -> None:
        self.problems = problems
        self.ops: dict[str, tuple[str, str, str]] = {}
        self.probes: dict[str, str] = {}
        self.kernels: dict[tuple[str, str], ListedKernel] = {}
        self.owners: dict[tuple[str, str], Description] = {}

    def add(self, plugin: Description) -> None:
        """Take in ops and backends; kernels follow when all of those are known."""
        for name, summary in plugin.ops:
            if self._free("op", name, plugin):
                self.ops[name] = (name, summary, plugin.plugin)
        for name, probe in plugin.backends:
            if self._free("backend", name, plugin):
                self.probes[name] = probe

    def add_kernels(self, plugin: Description, device: str) -> None:
        """Take in the kernels whose op and backend exist."""
        for name, op, backend, devices in plugin.kernels:
            if op not in self.ops or backend not in self.probes:
                missing = f"op '{op}'" if op not in self.ops else f"backend '{backend}'"
                self._leave_out(plugin, f"kernel '{name}' of {op}", f"there is no {missing}")
            elif self._free(f"kernel of {op}", name, plugin):
                answer = _available(self.probes[backend], devices, device)
                self.kernels[op, name] = ListedKernel(name, op, backend, plugin.plugin, bool(answer), answer.reason)

    def _free(self, kind: str, name: str, plugin: Description) -> bool:
        owner = self.owners.setdefault((kind, name), plugin)
        if owner is not plugin:
            self._leave_out(plugin, f"{kind} '{name}'", f"{owner.distribution} ({owner.plugin}) has that name already")
        return owner is plugin

    def _leave_out(self, plugin: Description, what: str, why: str) -> None:
        self.problems.append(Problem(plugin.plugin, plugin.distribution, f"{what} was left out: {why}"))


def _available(probe: str, devices: tuple[str, ...], device: str) -> Answer:
    answer = _probed(probe, device)
    return no(f"it runs on {', '.join(devices)}, not on {device}") if answer and device not in devices else answer


_probed = cache(probed)
"""Asked once for each backend, not for each of its kernels."""
