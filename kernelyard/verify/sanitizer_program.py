"""Finding compute-sanitizer, and its command line."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kernelyard.registry.matrix import point_payload
from kernelyard.registry.op import Point

FOLDERS = ("bin", "compute-sanitizer")
"""Of a toolkit: the first holds a script that starts the program in the second."""
USUAL = Path("/usr/local")

OPTIONS = {"memcheck": ("--padding", "512"), "racecheck": (), "initcheck": ()}
QUIET = ("--print-limit", "50", "--show-backtrace", "no", "--report-api-errors", "no", "--target-processes", "application-only")
"""50 reports are enough; errors of the CUDA API that torch provokes itself and handles are none of the kernel's."""


@dataclass(frozen=True)
class Search:
    """compute-sanitizer if it was found, and where was looked."""

    program: Path | None
    looked_in: tuple[str, ...]

    def reason(self) -> str:
        """Why there is none, with the remedy."""
        where = ", ".join(self.looked_in)
        return f"compute-sanitizer not found (looked in {where}): it comes with the CUDA toolkit; put it on PATH or set CUDA_HOME"


def find_sanitizer() -> Search:
    """The program of CUDA_HOME or CUDA_PATH where one has it, else of PATH, else of the toolkits in /usr/local."""
    looked = []
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if named := os.environ.get(variable):
            looked.append(f"{variable}={named}")
            if found := _of_toolkit(Path(named)):
                return Search(found, tuple(looked))
    looked.append("PATH")
    if on_path := shutil.which("compute-sanitizer"):
        return Search(Path(on_path), tuple(looked))
    looked.append(f"{USUAL}/cuda*")
    homes = sorted(USUAL.glob("cuda*"), reverse=True)
    return Search(next(filter(None, map(_of_toolkit, homes)), None), tuple(looked))


def _of_toolkit(home: Path) -> Path | None:
    found = next(filter(None, (shutil.which("compute-sanitizer", path=str(home / folder)) for folder in FOLDERS)), None)
    return Path(found) if found else None


def command(program: Path, tool: str, op: str, kernel: str, points: Sequence[Point]) -> list[str]:
    """The command line of one run."""
    child = [sys.executable, "-P", "-m", "kernelyard.verify.sanitized", op, kernel, json.dumps([point_payload(p) for p in points])]
    return [str(program), "--tool", tool, *OPTIONS[tool], *QUIET, *child]
