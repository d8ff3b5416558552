"""Native sources to a loaded module: hash, lock, build apart, publish, load once.

Two plugins may both call a module 'kernels': the content hash tells them apart. An unchanged source starts no compiler.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from kernelyard.errors import BuildFailed
from kernelyard.plugins.native.artefacts import library_path, locked, publish, workshop
from kernelyard.plugins.native.sources import content_hash, define_flags, escape, escape_path, write_units
from kernelyard.plugins.native.tools import ninja_folder, tvm_ffi_version
from kernelyard.registry.backend import NativeSource

LOCK_TIMEOUT_S = 600.0
"""Longer than any build seen (CUDA: a minute), short enough that a wedged machine says so."""

FOLDERS = ("find_include_path", "find_dlpack_include_path", "find_libtvm_ffi")

_modules: dict[Path, Any] = {}
_in_process = threading.RLock()


@dataclass(frozen=True)
class Recipe:
    """How to compile: flags for each compiler, what the result depends on besides them, and variables for tvm_ffi.

    `depends` is hashed: compiler versions, the CPU where -march=native is among the flags, the GPU's architecture.
    `environment` is set while building (TVM_FFI_CUDA_ARCH_LIST, CUDA_HOME) and hashed too.
    A source's own `flags` go to the C++ compiler, or to nvcc with `cuda`.
    """

    cxx_flags: tuple[str, ...] = ()
    cuda_flags: tuple[str, ...] = ()
    link_flags: tuple[str, ...] = ()
    depends: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    cuda: bool = False

    def identity(self) -> dict[str, object]:
        """Everything of it that belongs in the content hash."""
        flags = {"cxx": self.cxx_flags, "cuda": self.cuda_flags, "link": self.link_flags, "for_cuda": self.cuda}
        return {**flags, "depends": dict(self.depends), "environment": dict(self.environment), "tvm_ffi": tvm_ffi_version()}


def build_native(source: NativeSource, folder: Path, name: str, recipe: Recipe, *, lock_timeout_s: float = LOCK_TIMEOUT_S) -> Any:
    """The loaded tvm_ffi module of a kernel; its functions are attributes. Compiles only what no artefact matches.

    `source.files` lie in `folder`; `name` is the kernel's. Raises BuildFailed with the compiler's words, or naming the lock.
    """
    path = artefact(source, folder, name, recipe, lock_timeout_s=lock_timeout_s)
    with _in_process:
        if path not in _modules:
            _modules[path] = _load(path)
        return _modules[path]


def artefact(source: NativeSource, folder: Path, name: str, recipe: Recipe, *, lock_timeout_s: float = LOCK_TIMEOUT_S) -> Path:
    """The shared object, built if need be and not loaded: what a compile-ahead process calls."""
    path = library_path(name, content_hash(source, folder, recipe.identity()))
    if not path.is_file():
        with locked(path, lock_timeout_s):
            if not path.is_file():  # else another process built it while this one waited
                _build(source, folder, name, recipe, path)
    return path


def _load(path: Path) -> Any:
    import tvm_ffi

    try:
        return tvm_ffi.load_module(str(path))
    except (RuntimeError, OSError) as error:
        again = f"Delete {path.parent}; it is built again."
        raise BuildFailed(f"{path} was built but can't be loaded.", log=str(error), do=again) from error


def _build(source: NativeSource, folder: Path, name: str, recipe: Recipe, path: Path) -> None:
    start = time.perf_counter()
    with workshop(path) as temporary:
        built = _compile(source, folder, path.stem, recipe, temporary)
        note = {"kernel": name, "folder": str(folder), "files": list(source.files), "defines": dict(source.defines)}
        publish(built, path, {**note, **recipe.identity(), "seconds": round(time.perf_counter() - start, 3)})


def _compile(source: NativeSource, folder: Path, stem: str, recipe: Recipe, temporary: Path) -> Path:
    from tvm_ffi.cpp import build, extension

    own = (*source.flags, *define_flags(source.defines))
    with _in_process, _environment({**recipe.environment, "PATH": _path_with_ninja()}), _escaped_paths(extension):
        try:
            library = build(
                stem,
                sources=write_units(source, folder, temporary),
                extra_cflags=escape(recipe.cxx_flags if recipe.cuda else (*recipe.cxx_flags, *own)),
                extra_cuda_cflags=escape((*recipe.cuda_flags, *own)),
                extra_ldflags=escape(recipe.link_flags),
                build_directory=str(temporary),
                backend="cuda" if recipe.cuda else None,
            )
        except RuntimeError as error:
            raise BuildFailed(f"{', '.join(source.files)} does not compile.", log=_from_first_error(str(error))) from None
    return Path(library)


def _path_with_ninja() -> str:
    """PATH, with the folder of ninja at its end: tvm_ffi starts ninja by its bare name."""
    ninja = ninja_folder()
    if ninja is None:
        raise BuildFailed("ninja was not found on PATH or beside this Python.", do="pip install ninja")
    return os.pathsep.join(filter(None, (os.environ.get("PATH"), str(ninja))))


def _from_first_error(log: str, most: int = 1500) -> str:
    """The compiler's first error and what follows it; the tail where no line is an error."""
    lines = log.splitlines()
    first = next((i for i, line in enumerate(lines) if re.search(r"\berror\b", line, re.IGNORECASE)), None)
    return log[-most:] if first is None else "\n".join(lines[first:])[:most]


@contextmanager
def _escaped_paths(extension: Any) -> Iterator[None]:
    """tvm_ffi's own folders escaped, while it writes its ninja file: an environment may lie under a path with a space.

    It takes them from these functions, which its module looks up by name.
    """
    before: dict[str, Callable[[], str]] = {name: getattr(extension, name) for name in FOLDERS}
    for name, find in before.items():
        setattr(extension, name, partial(_call_escaped, find))
    try:
        yield
    finally:
        for name, find in before.items():
            setattr(extension, name, find)


def _call_escaped(find: Callable[[], str]) -> str:
    return escape_path(find())


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """os.environ with these set, for as long as tvm_ffi reads it."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
