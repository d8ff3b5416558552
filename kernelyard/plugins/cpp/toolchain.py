"""What this machine's C++ compiler has: asked by compiling tiny programs once, then read from the home.

Needed is only a compiler of C++17. OpenMP and the CPU's own instructions are used where they are: without OpenMP a kernel runs on
one thread, without -march=native it uses what every such CPU has. Linux with GCC is what this was run on; Clang and macOS on Apple
silicon are written for and untested. There OpenMP is torch's own libomp, because two of them in one process abort. On Linux the
kernels ask for libgomp.so.1, the name under which torch has loaded its own, so both share one pool of threads.
"""

from __future__ import annotations

import importlib.util
import platform
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kernelyard.errors import BuildFailed
from kernelyard.plugins.native.build import Recipe
from kernelyard.plugins.native.tools import COMPILER_TIMEOUT_S, compiler_version, cxx, remembered
from kernelyard.registry.machine import identity

BASE = ("-std=c++17", "-fPIC", "-O3")
OPTIONAL = (
    "-fno-math-errno",  # sqrt becomes an instruction
    "-fno-trapping-math",  # selects become blends; NaN and infinity stay as they are
    "-fvisibility=hidden",  # two kernels' helpers of one name stay apart
    "-fno-gnu-unique",  # so do their static variables, which GCC else shares over the whole process
    "-Wno-psabi",  # vectors are passed between inlined functions only
)
NATIVE = ("-march=native", "-mcpu=native")
PROGRAM = """#include <cstdint>
extern "C" float probe(const float* x, int64_t n) {
  float sum = 0;
  PRAGMA
  for (int64_t i = 0; i < n; ++i) sum += x[i];
  return sum;
}
"""
OPENMP_PRAGMA = '_Pragma("omp parallel for reduction(+ : sum) num_threads(2)")'


def recipe() -> Recipe:
    """How cpp kernels are compiled here; raises BuildFailed where the compiler can't build a C++17 program."""
    found = capabilities()
    depends = {"c++": compiler_version(cxx())}
    if found["native"]:
        depends["cpu"] = _instructions()
    flags = (*BASE, *found["optional"], *found["native"], *found["openmp"])
    return Recipe(cxx_flags=flags, link_flags=tuple(found["openmp_link"]), depends=depends)


def capabilities() -> Mapping[str, Any]:
    """Lists of flags that work here: `optional`, `native`, `openmp` and `openmp_link`; empty where there is nothing."""
    return remembered("capabilities", cxx(), _ask, extra=_instructions())


def _instructions() -> str:
    """The CPU's model and instruction set, without its number of threads: a home may be shared between machines."""
    cpu = identity("cpu")
    return f"{cpu.name} {cpu.capability.rpartition('-')[0]}"


def _ask() -> Mapping[str, Any]:
    with tempfile.TemporaryDirectory(prefix="kernelyard-probe-") as folder:
        log = _compiles(Path(folder), BASE)
        if log is not None:
            raise BuildFailed(
                f"'{' '.join(cxx())}' can't build a small C++17 library.", log=log, do="Install a C++17 compiler, or set CXX."
            )
        native = next((flag for flag in NATIVE if _compiles(Path(folder), (*BASE, flag)) is None), None)
        openmp, link = next((pair for pair in _openmp_ways() if _compiles(Path(folder), (*BASE, *pair[0]), pair[1]) is None), ((), ()))
        return {
            "optional": [flag for flag in OPTIONAL if _compiles(Path(folder), (*BASE, "-Werror", flag)) is None],
            "native": [native] if native else [],
            "openmp": list(openmp),
            "openmp_link": list(link),
        }


def _openmp_ways() -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
    """Compiler and linker flags to try, best first."""
    if platform.system() != "Darwin":
        return [(("-fopenmp",), ("-fopenmp",))]
    torch = importlib.util.find_spec("torch")
    folders = [Path(torch.origin).parent / "lib"] if torch and torch.origin else []
    links = [(f"-L{folder}", f"-Wl,-rpath,{folder}", "-lomp") for folder in folders if (folder / "libomp.dylib").exists()]
    return [(("-Xpreprocessor", "-fopenmp"), link) for link in [*links, ("-lomp",)]]


def _compiles(folder: Path, flags: Sequence[str], link: Sequence[str] = ()) -> str | None:
    """None where a tiny library compiles and links with these flags, else what the compiler said."""
    source = folder / "probe.cpp"
    source.write_text(PROGRAM.replace("PRAGMA", OPENMP_PRAGMA if "-fopenmp" in flags else ""))
    command = [*cxx(), "-shared", *flags, str(source), "-o", str(folder / "probe.so"), *link]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=COMPILER_TIMEOUT_S)
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)
    return None if answer.returncode == 0 else answer.stderr or f"exit status {answer.returncode}"
