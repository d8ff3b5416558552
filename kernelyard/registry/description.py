"""What an entry point declares, as names; a stranger's is imported in a child process, not in this one.

The child has a time limit, and what it found is kept in the home folder until the plugin's files or the installed packages
change. So a plugin that raises, hangs, prints or ends the process can't harm `kernelyard list`. What the built-in ones declare is
kept too, as importing them all takes longer than the rest of a listing.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from kernelyard.registry import discovery
from kernelyard.registry.answer import digest
from kernelyard.registry.discovery import EntryPoint, Loaded, Problem
from kernelyard.registry.home import home_path

IMPORT_LIMIT_S = 60.0
INSTALLED = (".dist-info", ".egg-info", ".pth")
FAILURE_KEPT_S = 600.0
"""A failure is tried again after so long: its cause may lie outside the files that are watched, in a driver or the environment."""


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
    if point.trusted:
        return _here(point)
    key, file = _key(point), home_path() / "plugins" / f"{digest([point.distribution, point.name, point.value])}.json"
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        kept = json.loads(file.read_text())
        if kept["key"] == key and time.time() < kept["until"]:
            return _from_json(kept["content"])
    if point.built_in:
        described = _here(point)
    else:
        say(f"importing plugin {point.name} of {point.distribution} to see what it declares")
        described = _in_child(point)
    with contextlib.suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        partial = file.with_suffix(f".{os.getpid()}")
        until = time.time() + FAILURE_KEPT_S if isinstance(described, Problem) else 1e12
        partial.write_text(json.dumps({"key": key, "until": until, "content": asdict(described)}))
        partial.replace(file)
    return described


def _here(point: EntryPoint) -> Description | Problem:
    """Imported in this process, as what can be trusted is."""
    loaded = discovery.load(point)
    return loaded if isinstance(loaded, Problem) else Description.of(loaded)


def _key(point: EntryPoint) -> str:
    """Changes when the plugin's files do, or when anything is installed or removed."""
    package = point.value.partition(":")[0].partition(".")[0].strip()
    stats = _own_stats() if point.built_in else _stats(package)
    return digest([asdict(point), stats, _installed(), sys.version, discovery.API_VERSION])


@cache
def _own_stats() -> list[tuple[str, int, int]]:
    """Of kernelyard's own files: looked at once, for all that it brings."""
    return _stats("kernelyard")


def _stats(package: str) -> list[tuple[str, int, int]]:
    """Path, time and size of each Python file of a top-level package, found without importing it."""
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        spec = None
    if spec is None:
        return []
    if spec.submodule_search_locations is not None:
        return sorted(found for folder in spec.submodule_search_locations for found in _walk(folder))
    return [_stat(spec.origin)] if spec.origin and os.path.isfile(spec.origin) else []


def _walk(folder: str) -> Iterable[tuple[str, int, int]]:
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir():
                yield from _walk(entry.path) if entry.name != "__pycache__" else ()
            elif entry.name.endswith(".py"):
                yield _stat(entry.path)


def _stat(path: str) -> tuple[str, int, int]:
    seen = os.stat(path)
    return path, seen.st_mtime_ns, seen.st_size


def _installed() -> list[str]:
    """What is installed: distributions and path files in the folders that Python imports from."""
    found = []
    for folder in sys.path:
        with contextlib.suppress(OSError):
            found += [os.path.join(folder, name) for name in os.listdir(folder or os.curdir) if name.endswith(INSTALLED)]
    return sorted(found)


def _in_child(point: EntryPoint) -> Description | Problem:
    """Import in a child that sees our sys.path. Its output goes to files: a grandchild that lives on can't hold us by a pipe."""
    code = "import sys; from kernelyard.registry import description; description.child(*sys.argv[1:])"
    paths = os.pathsep.join(os.path.abspath(folder) for folder in sys.path)
    with tempfile.TemporaryDirectory(prefix="kernelyard-", ignore_cleanup_errors=True) as folder:
        answer, out, err = (Path(folder) / name for name in ("answer.json", "out", "err"))
        with out.open("wb") as stdout, err.open("wb") as stderr:
            child = subprocess.Popen(
                [sys.executable, "-P", "-c", code, json.dumps(asdict(point)), str(answer)],
                env={**os.environ, "PYTHONPATH": paths},
                stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, start_new_session=True,
            )  # fmt: skip
            ended = _ended(child)
        if not ended:
            return Problem(point.name, point.distribution, f"its import did not end within {IMPORT_LIMIT_S:g} s", _tail(err, 4000))
        if not answer.exists():
            how = f"with code {child.returncode}" if child.returncode >= 0 else f"by {signal.Signals(-child.returncode).name}"
            return Problem(point.name, point.distribution, f"its import ended the process {how}", _tail(err, 4000))
        return _from_json({**json.loads(answer.read_text()), "printed": _tail(out, 400)})


def _ended(child: subprocess.Popen[bytes]) -> bool:
    """Whether it ended in time; it and what it started is killed if not, and if we are interrupted."""
    try:
        child.wait(IMPORT_LIMIT_S)
        return True
    except subprocess.TimeoutExpired:
        return False
    finally:
        if child.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()


def _tail(file: Path, size: int) -> str:
    return file.read_bytes()[-size:].decode(errors="replace")


def child(argument: str, answer: str) -> None:
    """Import the entry point and write what it declares, in the child; ends it at once, whatever threads the plugin started."""
    loaded = discovery.load(EntryPoint(**json.loads(argument)))
    content = loaded if isinstance(loaded, Problem) else Description.of(loaded)
    partial = Path(f"{answer}.part")
    partial.write_text(json.dumps(asdict(content)))
    partial.replace(answer)
    with contextlib.suppress(Exception):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(0)


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
