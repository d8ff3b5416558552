"""Finding nvcc and the toolkit it belongs to. Light: no torch, and nvcc is started only where its toolkit is not around it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from kernelyard.errors import BuildFailed

USUAL = Path("/usr/local/cuda")


@dataclass(frozen=True, slots=True)
class Search:
    """nvcc if it was found, and where was looked."""

    nvcc: Path | None
    looked_in: tuple[str, ...]

    def reason(self) -> str:
        """Why there is none, in a sentence with the remedy."""
        return f"nvcc not found (looked in {', '.join(self.looked_in)}): install the CUDA toolkit, or name it by CUDA_HOME"


def find_nvcc() -> Search:
    """The nvcc of CUDA_HOME or CUDA_PATH where one is set, else of PATH, else of /usr/local/cuda.

    A variable that names a folder without nvcc ends the search: the user meant that toolkit, another would surprise.
    """
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if named := os.environ.get(variable):
            return Search(_program(Path(named) / "bin"), (f"{variable}={named}",))
    on_path = shutil.which("nvcc")
    if on_path:
        return Search(Path(on_path), ("PATH",))
    return Search(_program(USUAL / "bin"), ("CUDA_HOME", "CUDA_PATH", "PATH", str(USUAL)))


def _program(folder: Path) -> Path | None:
    found = shutil.which("nvcc", path=str(folder))
    return Path(found) if found else None


def toolkit_of(nvcc: Path) -> Path:
    """The folder with bin/nvcc and include/cuda_runtime.h; raises BuildFailed.

    nvcc itself may be a link, or a script elsewhere that starts the real one: then it is asked where it stands.
    """
    for candidate in (nvcc, nvcc.resolve()):
        if _complete(candidate.parent.parent):
            return candidate.parent.parent
    home = _told_by(nvcc)
    if home is None or not _complete(home):
        raise BuildFailed(f"the CUDA toolkit of {nvcc} was not found.", do="Set CUDA_HOME to the folder with bin/nvcc and include/.")
    return home


def _complete(home: Path) -> bool:
    headers = (home / "include", *home.glob("targets/*/include"))
    return (home / "bin" / "nvcc").is_file() and any((folder / "cuda_runtime.h").is_file() for folder in headers)


@cache
def _told_by(nvcc: Path) -> Path | None:
    """A dry run compiles nothing and prints '#$ _HERE_=/opt/cuda/bin' first."""
    command = [str(nvcc), "--dryrun", "-x", "cu", "-c", os.devnull, "-o", os.devnull]
    try:
        told = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.SubprocessError):
        return None
    found = re.search(r"_HERE_=(.+)", told.stderr + told.stdout)
    return Path(found[1].strip()).parent if found else None
