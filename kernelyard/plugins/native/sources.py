"""What a native build is made from: its files, the headers they include, and a content hash of it all."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path

from kernelyard.errors import BuildFailed
from kernelyard.registry.backend import NativeSource
from kernelyard.registry.spec import digest

UNITS = (".c", ".cc", ".cpp", ".cxx", ".cu")
_INCLUDE = re.compile(rb'^[ \t]*#[ \t]*include[ \t]*"([^"]+)"', re.MULTILINE)


def closure(files: Iterable[Path]) -> tuple[Path, ...]:
    """The files and everything they include by a quoted, relative path, each once, in the order met."""
    found: dict[Path, None] = {}
    waiting = [path.resolve() for path in files]
    while waiting:
        path = waiting.pop(0)
        if path not in found:
            found[path] = None
            included = (path.parent / name.decode() for name in _INCLUDE.findall(read(path)))
            waiting += [header.resolve() for header in included if header.is_file()]
    return tuple(found)


def read(path: Path) -> bytes:
    """The content of a source; raises BuildFailed where there is none."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise BuildFailed(f"the source {path} can't be read: {error.strerror}.", do="Put it beside the kernel's module.") from error


def content_hash(source: NativeSource, folder: Path, depends: Mapping[str, object]) -> str:
    """Changes when a source, a header in reach, a define, a flag or anything in `depends` does; never with the folder."""
    texts = [read(path).decode(errors="replace") for path in closure(folder / name for name in source.files)]
    return digest([list(source.files), texts, dict(source.defines), list(source.flags), dict(depends)])


def write_units(source: NativeSource, folder: Path, into: Path) -> list[str]:
    """One stub a translation unit, which includes the real file by its quoted path.

    So a kernel's folder may have spaces in its name, which ninja files written by tvm_ffi don't escape.
    """
    units = [(folder / name).resolve() for name in source.files if Path(name).suffix in UNITS]
    if not units:
        raise BuildFailed(f"no translation unit among {list(source.files)}.", do=f"Name one that ends in {', '.join(UNITS)}.")
    stubs = [into / f"unit_{index}{path.suffix}" for index, path in enumerate(units)]
    for stub, path in zip(stubs, units, strict=True):
        stub.write_text(f'#include "{path}"\n')
    return [str(stub) for stub in stubs]


def define_flags(defines: Mapping[str, str | int]) -> list[str]:
    """-D flags, in a fixed order."""
    return [f"-D{name}={value}" for name, value in sorted(defines.items())]


def escape(flags: Iterable[str]) -> list[str]:
    """Flags as a ninja file takes them: quoted for the shell, dollars doubled for ninja."""
    return [shlex.quote(flag).replace("$", "$$") for flag in flags]


def escape_path(path: str) -> str:
    """The same for a path that stands in the middle of a flag."""
    return re.sub(r"([^\w./$:+@%,=-])", r"\\\1", path).replace("$", r"\$$")
