"""Where built libraries lie, who may build one, and how it appears: complete, by one rename.

An artefact is `home()/builds/<kernel>-<hash>/`. Nothing there is ever changed: other content has another hash. One process builds,
holding a lock that the operating system drops when its owner dies, so that neither `kill -9` nor an old lock file can hang the next.
"""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from kernelyard.errors import BuildFailed
from kernelyard.registry.home import home, home_path
from kernelyard.registry.spec import digest

ELSEWHERE = "Set KERNELYARD_HOME to a folder you can write."


def library_path(name: str, content: str) -> Path:
    """The shared object of a kernel with this content hash, whether or not it exists."""
    stem = f"{re.sub(r'[^A-Za-z0-9_.]', '_', name)}-{content}"
    return home_path() / "builds" / stem / f"{re.sub(r'[.-]', '_', stem)}.so"


@contextmanager
def locked(path: Path, timeout_s: float) -> Iterator[None]:
    """One builder of a library among all processes and threads; an abandoned lock file is no lock."""
    import filelock

    file = home() / "builds" / f"{path.parent.name}.lock"
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        lock = filelock.FileLock(file, timeout=timeout_s, thread_local=False)
        lock.acquire()
    except filelock.Timeout as error:
        raise BuildFailed(f"another process has held {file} for {timeout_s:g} s.", do="End it, then try again.") from error
    except OSError as error:
        raise BuildFailed(f"the lock {file} can't be taken: {error.strerror}.", do=ELSEWHERE) from error
    try:
        yield
    finally:
        lock.release()


@contextmanager
def workshop(path: Path) -> Iterator[Path]:
    """A fresh folder to build `path` in, gone afterwards. Called under its lock, so what a killed build left is nobody's."""
    parent = _space_free(path.parent.parent)
    prefix = f"building-{path.parent.name}-{digest(str(path))[:8]}-"
    for leftover in {*parent.glob(f"{prefix}*"), *path.parent.parent.glob(f"{prefix}*")}:
        shutil.rmtree(leftover, ignore_errors=True)
    try:
        with tempfile.TemporaryDirectory(prefix=prefix, dir=parent, ignore_cleanup_errors=True) as folder:
            yield Path(folder)
    except OSError as error:
        raise BuildFailed(f"{path.name} can't be built under {parent}: {error}.", do="Free some space. " + ELSEWHERE) from error


def _space_free(builds: Path) -> Path:
    """Where to compile: beside the artefacts, or in the system's temporary folder where that path has a space.

    tvm_ffi writes paths into ninja files without escaping them.
    """
    for folder in (builds, Path(tempfile.gettempdir())):
        if not re.search(r"[\s$]", str(folder.resolve())):
            return folder
    raise BuildFailed(f"both {builds} and {tempfile.gettempdir()} have a space in their paths.", do="Set TMPDIR to a path without one.")


def publish(built: Path, path: Path, note: Mapping[str, object]) -> None:
    """The library and a note of how it was made appear together. Staged beside its place: a rename must not cross file systems."""
    prefix = f"building-{path.parent.name}-{digest(str(path))[:8]}-"
    with tempfile.TemporaryDirectory(prefix=prefix, dir=path.parent.parent) as temporary:
        staged = Path(temporary) / "artefact"
        staged.mkdir()
        shutil.copy2(built, staged / path.name)
        (staged / "build.json").write_text(json.dumps(note, indent=1))
        if path.parent.exists():  # without its library, else nobody would build: a stranger's lock file, a broken copy
            shutil.rmtree(path.parent)
        staged.replace(path.parent)
