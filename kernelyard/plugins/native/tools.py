"""Finding ninja, the compiler and its version. Light: no torch, no tvm_ffi; a compiler is started at most once."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from kernelyard.errors import BuildFailed
from kernelyard.registry.answer import YES, Answer, digest, no
from kernelyard.registry.home import home_path
from kernelyard.registry.machine import installed

COMPILER_TIMEOUT_S = 60
APPLE_COMPILERS = ("/var/db/xcode_select_link/usr/bin/clang", "/Library/Developer/CommandLineTools/usr/bin/clang")


def ninja_folder() -> Path | None:
    """The folder of a `ninja` that can be run: on PATH, or beside this Python, where pip puts it."""
    beside = os.pathsep.join((str(Path(sys.executable).parent), sysconfig.get_path("scripts")))
    found = shutil.which("ninja") or shutil.which("ninja", path=beside)
    return Path(found).parent if found else None


def ninja_and_tvm_ffi() -> Answer:
    """Whether the two packages that every native build needs are here."""
    if not installed("tvm_ffi"):
        return no("the package apache-tvm-ffi is not installed: pip install apache-tvm-ffi")
    if ninja_folder() is None:
        return no("ninja was not found on PATH or beside this Python: pip install ninja")
    return YES


def cxx() -> tuple[str, ...]:
    """The C++ compiler as a command: $CXX with its words split, else c++."""
    return tuple(shlex.split(os.environ.get("CXX", ""))) or ("c++",)


def compiler_version(command: tuple[str, ...]) -> str:
    """The first line of `command --version`, remembered until the compiler changes; raises BuildFailed."""
    return str(remembered("version", command, lambda: {"version": _ask_version(command)})["version"])


def tvm_ffi_version() -> str:
    """The version of the installed package, from its metadata."""
    return metadata.version("apache-tvm-ffi")


def _ask_version(command: tuple[str, ...]) -> str:
    try:
        answer = subprocess.run([*command, "--version"], capture_output=True, text=True, timeout=COMPILER_TIMEOUT_S)
    except (OSError, subprocess.SubprocessError) as error:
        raise BuildFailed(f"the compiler '{' '.join(command)}' can't be run: {error}.", do="Install one, or name it by CXX.") from error
    if answer.returncode != 0:
        raise BuildFailed(f"'{' '.join(command)} --version' failed.", log=answer.stderr, do="Install a compiler, or name it by CXX.")
    lines = answer.stdout.strip().splitlines()
    return next((line for line in lines if "release" in line), lines[0] if lines else "unknown")  # nvcc tells it in its 4th line


_memory: dict[Path, Mapping[str, Any]] = {}


def remembered(topic: str, command: tuple[str, ...], ask: Callable[[], Mapping[str, Any]], extra: str = "") -> Mapping[str, Any]:
    """What `ask()` said of this compiler, kept as JSON in the home; asked again once the binary, or `extra`, differs.

    A home that can't be written costs only asking anew in each process.
    """
    path = home_path() / "builds" / f"compiler-{topic}-{digest([command, _stamp(command[0]), extra])}.json"
    if path not in _memory:
        _memory[path] = _read(path) or _write(path, ask())
    return _memory[path]


def _stamp(name: str) -> list[Any]:
    """What tells one state of a compiler's binary from another without running it."""
    program = shutil.which(name)
    if program is None:
        raise BuildFailed(f"the compiler '{name}' was not found on PATH.", do="Install one, or name it by CXX.")
    real = Path(program).resolve()
    if sys.platform == "darwin" and real.parent == Path("/usr/bin"):  # a stub that Xcode's updates leave alone
        real = next((Path(p).resolve() for p in APPLE_COMPILERS if Path(p).exists()), real)
    stat = real.stat()
    return [str(real), stat.st_mtime_ns, stat.st_size]


def _read(path: Path) -> Mapping[str, Any] | None:
    try:
        value = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def _write(path: Path, value: Mapping[str, Any]) -> Mapping[str, Any]:
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(json.dumps(value))
        temporary.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink()
    return value
