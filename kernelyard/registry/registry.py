"""The table of everything declared: ops, kernels, backends, and what could not be added, with reasons."""

from __future__ import annotations

import contextlib
import sys
import threading
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TypeVar

from kernelyard.errors import BuildFailed, KernelyardError, PluginFailed, UnknownName
from kernelyard.registry import discovery
from kernelyard.registry.backend import Backend, Builder, Executable, Purpose
from kernelyard.registry.description import describe
from kernelyard.registry.discovery import EntryPoint, Loaded, Problem
from kernelyard.registry.kernel import Kernel
from kernelyard.registry.op import Op
from kernelyard.registry.spec import Answer, Config, Workload, no

T = TypeVar("T")


@dataclass
class Registry:
    """Everything that plugins declared. A name belongs to the first that declared it; built-ins come first."""

    ops: dict[str, Op] = field(default_factory=dict)
    backends: dict[str, Backend] = field(default_factory=dict)
    by_op: dict[str, dict[str, Kernel]] = field(default_factory=dict)
    plugins: list[Loaded] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    origin: dict[tuple[str, str], Loaded] = field(default_factory=dict)

    def add(self, loaded: Loaded) -> None:
        """Take in ops and backends; kernels follow in `add_kernels`, when all ops are known."""
        self.plugins.append(loaded)
        for op in loaded.plugin.ops:
            self._claim("op", op.name, op, self.ops, loaded)
        for backend in loaded.plugin.backends:
            self._claim("backend", backend.name, backend, self.backends, loaded)

    def add_kernels(self, loaded: Loaded) -> None:
        """Take in the kernels whose op and backend exist."""
        for kernel in loaded.plugin.kernels:
            if kernel.op not in self.ops or kernel.backend not in self.backends:
                missing = f"op '{kernel.op}'" if kernel.op not in self.ops else f"backend '{kernel.backend}'"
                self._problem(loaded, f"kernel '{kernel.name}' of {kernel.op} was left out: there is no {missing}")
                continue
            table = self.by_op.setdefault(kernel.op, {})
            self._claim(f"kernel of {kernel.op}", kernel.name, kernel, table, loaded)

    def _claim(self, kind: str, name: str, thing: T, table: dict[str, T], loaded: Loaded) -> None:
        if name in table:
            owner = self.origin[kind, name].entry_point
            self._problem(loaded, f"{kind} '{name}' was left out: {owner.distribution} ({owner.name}) has that name already")
            return
        table[name] = thing
        self.origin[kind, name] = loaded

    def _problem(self, loaded: Loaded, reason: str) -> None:
        self.problems.append(Problem(loaded.entry_point.name, loaded.entry_point.distribution, reason))

    # Looking up -------------------------------------------------------------------------------------

    def op(self, name: str) -> Op:
        """The op of this name; raises UnknownName."""
        if name not in self.ops:
            raise UnknownName("op", name, self.ops)
        return self.ops[name]

    def kernels(self, op: str) -> list[Kernel]:
        """Every kernel of an op, in order of falling priority, then name."""
        self.op(op)
        return sorted(self.by_op.get(op, {}).values(), key=lambda k: (-k.priority, k.name))

    def kernel(self, op: str, name: str) -> Kernel:
        """One kernel of an op; raises UnknownName."""
        self.op(op)
        table = self.by_op.get(op, {})
        if name not in table:
            raise UnknownName(f"kernel of {op}", name, table)
        return table[name]

    def backend(self, name: str) -> Backend:
        """The backend of this name; raises UnknownName."""
        if name not in self.backends:
            raise UnknownName("backend", name, self.backends)
        return self.backends[name]

    def plugin_of(self, kernel: Kernel) -> Loaded:
        """The plugin that a kernel came with."""
        return self.origin[f"kernel of {kernel.op}", kernel.name]

    # Can it, and how --------------------------------------------------------------------------------

    def can_run(self, kernel: Kernel, device: str, purpose: Purpose = "run") -> Answer:
        """Whether this machine's device can run the kernel at all: its backend and its declared devices."""
        answer = self.backend(kernel.backend).available(device, purpose)
        if answer and purpose == "run" and device not in kernel.support.devices:
            return no(f"it runs on {', '.join(kernel.support.devices)}, not on {device}")
        return answer

    def builder(self, backend: str) -> Builder:
        """The backend's builder, imported now."""
        return self.backend(backend).builder()

    def build(self, kernel: Kernel, workload: Workload, config: Config) -> Executable:
        """Build one kernel for one workload; raises errors.BuildFailed, also for what the plugin's own code raised."""
        try:
            return self.builder(kernel.backend).build(self.op(kernel.op), kernel, workload, config)
        except KernelyardError:
            raise
        except Exception as error:
            log = "".join(traceback.format_exception(error))
            raise BuildFailed(f"{kernel.name} can't be built: {type(error).__name__}: {error}", log=log) from error


def assemble(loaded: Iterable[Loaded | Problem], problems: Iterable[Problem] = ()) -> Registry:
    """A registry from what discovery brought."""
    registry = Registry(problems=list(problems))
    good = []
    for one in loaded:
        if isinstance(one, Problem):
            registry.problems.append(one)
        else:
            good.append(one)
            registry.add(one)
    for one in good:
        registry.add_kernels(one)
    return registry


_lock = threading.RLock()
_current: Registry | None = None
_loading = False
on_reset: list[Callable[[], None]] = []
"""Called when the registry changes; dispatch drops what it had chosen."""


def current() -> Registry:
    """The registry of this process: every allowed plugin that is installed, imported at the first call."""
    global _current
    if (table := _current) is not None:  # every new signature asks: no lock for it
        return table
    with _lock:
        if _current is None:
            _current = _assembled()
        return _current


def _assembled() -> Registry:
    global _loading
    if _loading:
        raise PluginFailed("the registry was asked for while plugins load.", do="A plugin must not use ops when it is imported.")
    _loading = True
    try:
        points, problems = discovery.entry_points()
        return assemble([_load(point) for point in discovery.allowed(points)], problems)
    finally:
        _loading = False


def _load(point: EntryPoint) -> Loaded | Problem:
    """Import a plugin here, unless it is a stranger's and did not survive its trial in a child process."""
    described = None if point.built_in or point.trusted else describe(point)
    if isinstance(described, Problem):
        return described
    with contextlib.redirect_stdout(sys.stderr):  # what a plugin prints must not mix with a command's JSON
        return discovery.load(point)


def reset(registry: Registry | None = None) -> None:
    """Forget the registry, or put another in its place; the next call chooses anew."""
    global _current
    with _lock:
        _current = registry
    for call in on_reset:
        call()
