"""Discovery: installed entry points in, a table of plugins and problems out.

`entry_points` reads metadata only. `load` imports one entry point; whatever goes wrong there becomes a
`Problem` with the distribution's name, and takes nothing else down.
"""

from __future__ import annotations

import itertools
import os
import re
import time
import traceback
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from kernelyard.errors import PluginFailed, UsageError
from kernelyard.registry.answer import require
from kernelyard.registry.lazy import load as load_reference

if TYPE_CHECKING:  # listing reads what is kept of declarations, and does without the types themselves
    from kernelyard.registry.backend import Backend
    from kernelyard.registry.kernel import Kernel
    from kernelyard.registry.op import Op

GROUP = "kernelyard.plugins"
API_VERSION = 1
EXTRA = "KERNELYARD_EXTRA_PLUGINS"
"""The environment variable, and what stands for the distribution of a plugin named in it."""


@dataclass(frozen=True)
class Plugin:
    """What one plugin brings. `api` is the version of this declaration that it was written for."""

    name: str
    ops: tuple[Op, ...] = ()
    kernels: tuple[Kernel, ...] = ()
    backends: tuple[Backend, ...] = ()
    api: int = API_VERSION

    def __post_init__(self) -> None:
        from kernelyard.registry.backend import Backend
        from kernelyard.registry.kernel import Kernel
        from kernelyard.registry.op import Op

        for kind, things in (("ops", Op), ("kernels", Kernel), ("backends", Backend)):
            values = tuple(getattr(self, kind))
            object.__setattr__(self, kind, values)
            bad = [value for value in values if not isinstance(value, things)]
            require(not bad, f"plugin '{self.name}': {kind} holds {bad[:1]!r}, which is no {things.__name__}")


@dataclass(frozen=True, slots=True)
class EntryPoint:
    """One entry point as the metadata tells it, with the distribution it came from."""

    name: str
    value: str
    distribution: str
    version: str = ""

    @property
    def built_in(self) -> bool:
        """Whether kernelyard itself brings it."""
        return self.distribution == "kernelyard"

    @property
    def trusted(self) -> bool:
        """Whether the user named it for this process alone, so that it is imported without a trial."""
        return self.distribution == EXTRA


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a plugin, or a part of it, is not in the registry."""

    plugin: str
    distribution: str
    reason: str
    detail: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class Loaded:
    """A plugin that imported, where it came from and how long the import took."""

    plugin: Plugin
    entry_point: EntryPoint
    load_ms: float


def entry_points() -> tuple[tuple[EntryPoint, ...], tuple[Problem, ...]]:
    """Every entry point of the group, once; those that can't even be read as problems."""
    import importlib_metadata

    found: dict[str, list[EntryPoint]] = {}
    problems = []
    for distribution in importlib_metadata.distributions():
        try:
            # Most distributions have no entry point here: their metadata, parsed anew at each access, is not read.
            if points := distribution.entry_points.select(group=GROUP):
                metadata = distribution.metadata
                name = _normal(metadata["Name"])
                # Listed twice (an old dist-info left behind): the first on the path is what Python imports.
                found.setdefault(name, [EntryPoint(p.name, p.value, name, metadata["Version"]) for p in points])
        except Exception as error:  # a stale or malformed dist-info can raise anything
            path = getattr(distribution, "_path", "a distribution")
            problems.append(Problem(Path(path).name, str(path), f"its metadata can't be read: {type(error).__name__}: {error}"))
    every = dict.fromkeys([*itertools.chain(*found.values()), *_extra()])
    return tuple(sorted(every, key=lambda p: (not p.built_in, p.distribution, p.name))), tuple(problems)


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _extra() -> Iterable[EntryPoint]:
    """KERNELYARD_EXTRA_PLUGINS='module:attribute,...' adds plugins that no distribution declares."""
    for value in filter(None, (word.strip() for word in os.environ.get(EXTRA, "").split(","))):
        yield EntryPoint(value.partition(":")[0].rpartition(".")[2], value, EXTRA)


def allowed(points: Iterable[EntryPoint]) -> tuple[EntryPoint, ...]:
    """What KERNELYARD_PLUGINS lets through: 'a,b' only those (and the built-in ones), '-a,-b' all but those."""
    points = tuple(points)
    words = [word.strip() for word in os.environ.get("KERNELYARD_PLUGINS", "").split(",") if word.strip()]
    denied = {word[1:] for word in words if word.startswith("-")}
    wanted = {word for word in words if not word.startswith("-")}
    known = {p.name for p in points} | {p.distribution for p in points}
    if unknown := {word for word in denied | wanted if not {word, _normal(word)} & known}:
        installed = ", ".join(sorted(known)) or "none"
        raise UsageError(f"KERNELYARD_PLUGINS names {', '.join(sorted(unknown))}.", exists=f"Installed: {installed}.")
    return tuple(p for p in points if not _named(p, denied) and (not wanted or p.built_in or _named(p, wanted)))


def _named(point: EntryPoint, words: set[str]) -> bool:
    return point.name in words or point.distribution in map(_normal, words)


def load(point: EntryPoint) -> Loaded | Problem:
    """Import one entry point. BaseException is caught too: a plugin that calls sys.exit() must not end us."""
    start = time.perf_counter()
    try:
        plugin = _as_plugin(point)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        reason = str(error) if isinstance(error, PluginFailed) else f"{type(error).__name__}: {error}".rstrip(": ")
        return Problem(point.name, point.distribution, reason, traceback.format_exc())
    return Loaded(plugin, point, (time.perf_counter() - start) * 1e3)


def _as_plugin(point: EntryPoint) -> Plugin:
    reference = point.value.partition("[")[0].strip()  # 'package.module:attribute [extra]'
    value = load_reference(reference if ":" in reference else f"{reference}:plugin")
    if isinstance(value, ModuleType):
        value = value.plugin
    if callable(value):
        value = value()
    if not isinstance(value, Plugin):
        problem = f"{point.value} gave {type(value).__name__}, not a Plugin."
        raise PluginFailed(problem, do="Declare kernelyard.registry.discovery.Plugin(...).")
    if value.api != API_VERSION:
        problem = f"it was written for plugin API {value.api}, this is API {API_VERSION}."
        raise PluginFailed(problem, do="Install a matching version of one of them.")
    return value
