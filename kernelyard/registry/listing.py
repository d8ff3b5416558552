"""What is installed, told without importing strangers' plugins into this process.

kernelyard's own declarations are light and imported as they are. Another distribution's entry point is imported once
in a child process with a time limit, and what it declared is kept in the home folder until its files or the installed
packages change. So a plugin that raises, hangs, prints or ends the process can't harm `kernelyard list`.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from kernelyard.registry import discovery
from kernelyard.registry.backend import Backend
from kernelyard.registry.discovery import EntryPoint, Loaded, Problem
from kernelyard.registry.home import home_path
from kernelyard.registry.spec import Answer, digest, no

IMPORT_LIMIT_S = 60.0


@dataclass(frozen=True, slots=True)
class Description:
    """What one plugin declares, as names."""

    plugin: str
    distribution: str
    version: str
    load_ms: float
    ops: tuple[tuple[str, str], ...]
    kernels: tuple[tuple[str, str, str, tuple[str, ...]], ...]
    backends: tuple[tuple[str, str], ...]
    printed: str = ""

    @staticmethod
    def of(loaded: Loaded) -> Description:
        """The names in a loaded plugin."""
        plugin, point = loaded.plugin, loaded.entry_point
        return Description(
            point.name,
            point.distribution,
            point.version,
            round(loaded.load_ms, 1),
            tuple((op.name, op.summary) for op in plugin.ops),
            tuple((k.name, k.op, k.backend, k.support.devices) for k in plugin.kernels),
            tuple((b.name, b.probe) for b in plugin.backends),
        )


def describe(point: EntryPoint, say: Callable[[str], None] = lambda text: None) -> Description | Problem:
    """What an entry point declares; a stranger's is imported in a child process, unless that was done before."""
    if point.built_in or point.trusted:
        loaded = discovery.load(point)
        return loaded if isinstance(loaded, Problem) else Description.of(loaded)
    key, file = _key(point), home_path() / "plugins" / f"{digest([point.distribution, point.name, point.value])}.json"
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        kept = json.loads(file.read_text())
        if kept["key"] == key:
            return _from_json(kept["content"])
    say(f"importing plugin {point.name} of {point.distribution} to see what it declares")
    described = _in_child(point)
    with contextlib.suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        partial = file.with_suffix(f".{os.getpid()}")
        partial.write_text(json.dumps({"key": key, "content": _to_json(described)}))
        partial.replace(file)
    return described


def _key(point: EntryPoint) -> str:
    """Changes when the plugin's files do, or when anything is installed or removed."""
    package = point.value.partition(":")[0].partition(".")[0]
    folders = [Path(folder) for folder in sys.path if folder and Path(folder).is_dir()]
    files = [file for folder in folders for file in [*(folder / package).rglob("*.py"), folder / f"{package}.py"] if file.is_file()]
    newest = max((file.stat().st_mtime_ns for file in files), default=0)
    return digest([asdict(point), newest, [folder.stat().st_mtime_ns for folder in folders], sys.version, discovery.API_VERSION])


def _in_child(point: EntryPoint) -> Description | Problem:
    with tempfile.TemporaryDirectory(prefix="kernelyard-") as folder:
        answer = Path(folder) / "answer.json"
        command = [sys.executable, "-m", "kernelyard.registry.listing", json.dumps(asdict(point)), str(answer)]
        try:
            ran = subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=IMPORT_LIMIT_S
            )
        except subprocess.TimeoutExpired:
            return Problem(point.name, point.distribution, f"its import did not end within {IMPORT_LIMIT_S:.0f} s")
        if not answer.exists():
            return Problem(point.name, point.distribution, f"its import ended the process with code {ran.returncode}", ran.stderr[-4000:])
        return _from_json({**json.loads(answer.read_text()), "printed": ran.stdout[-400:]})


def _to_json(described: Description | Problem) -> dict[str, Any]:
    return asdict(described)


def _from_json(content: dict[str, Any]) -> Description | Problem:
    if "reason" in content:
        return Problem(content["plugin"], content["distribution"], content["reason"], content.get("detail", ""))
    return Description(
        content["plugin"],
        content["distribution"],
        content["version"],
        content["load_ms"],
        tuple((name, summary) for name, summary in content["ops"]),
        tuple((name, op, backend, tuple(devices)) for name, op, backend, devices in content["kernels"]),
        tuple((name, probe) for name, probe in content["backends"]),
        content.get("printed", ""),
    )


# The whole table --------------------------------------------------------------------------------------


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
    points, unreadable = discovery.entry_points()
    described = [describe(point, say) for point in discovery.allowed(points)]
    plugins = tuple(one for one in described if isinstance(one, Description))
    problems = [*unreadable, *(one for one in described if isinstance(one, Problem))]
    ops: dict[str, tuple[str, str, str]] = {}
    backends: dict[str, tuple[str, str]] = {}
    for plugin in plugins:
        for name, summary in plugin.ops:
            ops.setdefault(name, (name, summary, plugin.plugin))
        for name, probe in plugin.backends:
            backends.setdefault(name, (probe, plugin.plugin))
    kernels: dict[tuple[str, str], ListedKernel] = {}
    for plugin in plugins:
        for name, op, backend, devices in plugin.kernels:
            if (op, name) in kernels or op not in ops or backend not in backends:
                owner = (
                    f"{kernels[op, name].plugin} has that name already" if (op, name) in kernels else "its op or backend is not installed"
                )
                problems.append(Problem(plugin.plugin, plugin.distribution, f"kernel '{name}' of {op} was left out: {owner}"))
                continue
            answer = _available(backend, backends[backend][0], devices, device)
            kernels[op, name] = ListedKernel(name, op, backend, plugin.plugin, bool(answer), answer.reason)
    ordered = tuple(sorted(kernels.values(), key=lambda k: (list(ops).index(k.op), k.name)))
    return Listing(tuple(ops.values()), ordered, plugins, tuple(problems))


def _available(backend: str, probe: str, devices: tuple[str, ...], device: str) -> Answer:
    answer = _probed(backend, probe, device)
    return no(f"it runs on {', '.join(devices)}, not on {device}") if answer and device not in devices else answer


@cache
def _probed(backend: str, probe: str, device: str) -> Answer:
    try:
        return Backend(backend, "", (device,), probe, probe).available(device)
    except Exception as error:  # a stranger's probe may raise anything
        return no(f"its backend's probe failed: {type(error).__name__}: {error}")


def _child(argument: str, answer: str) -> None:
    """Import the entry point and write what it declares; runs in the child process."""
    loaded = discovery.load(EntryPoint(**json.loads(argument)))
    content = loaded if isinstance(loaded, Problem) else Description.of(loaded)
    Path(answer).write_text(json.dumps(_to_json(content)))


if __name__ == "__main__":
    _child(sys.argv[1], sys.argv[2])
