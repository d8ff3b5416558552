"""Installs torch (and triton) into the environment whose Python runs this, without a CUDA build where none is of use.

Run by `make install`; by hand: `.venv/bin/python scripts/install_torch.py`. Standard library only.

On Linux the plain torch wheel is a CUDA build on x86-64 and on arm64 alike, some gigabytes with what it needs. So where no
NVIDIA GPU is seen the CPU build is asked for first: from the indexes that pip is configured with, then from the one that
KERNELYARD_TORCH_INDEX names. Elsewhere (macOS) the plain wheel is a CPU build already.
"""

from __future__ import annotations

import ctypes
import os
import platform
import re
import subprocess
import sys
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

LEAST = (2, 11)
RELEASE = "2.13.0"
INDEX_VARIABLE = "KERNELYARD_TORCH_INDEX"
SIZE_NOTICE = (
    f"NOTICE: no CPU build of torch {RELEASE} was found, so pip now fetches the CUDA build: about 3 GB that this machine can't use. "
    f"To avoid it, stop and set {INDEX_VARIABLE} to a package index that has CPU builds of torch.\n"
)
NO_TRITON_NOTICE = "NOTICE: triton was not found; its kernels are listed as unavailable and the checks of them are skipped."


@dataclass(frozen=True)
class Facts:
    """What decides; versions are None where the package is not installed."""

    system: str
    nvidia: bool
    torch: str | None = None
    triton: str | None = None
    index: str | None = None


@dataclass(frozen=True)
class Attempt:
    """Arguments of one `pip install`, and what to tell before it runs."""

    arguments: tuple[str, ...]
    notice: str = ""


@dataclass(frozen=True)
class Step:
    """Attempts in order; the first that succeeds ends the step. An optional step may fail, with its notice."""

    package: str
    attempts: tuple[Attempt, ...]
    optional: str = ""


def plan(facts: Facts) -> tuple[Step, ...]:
    """The steps to take, none where all is there."""
    steps = []
    if not satisfied(facts.torch):
        steps.append(Step("torch", _torch_attempts(facts)))
    if facts.system == "Linux" and not facts.nvidia and facts.triton is None:
        steps.append(Step("triton", (Attempt(("triton>=3.6",)),), optional=NO_TRITON_NOTICE))
    return tuple(steps)


def _torch_attempts(facts: Facts) -> tuple[Attempt, ...]:
    if facts.nvidia:
        return (Attempt((f"torch>={LEAST[0]}.{LEAST[1]}",)),)
    if facts.system != "Linux":
        return (Attempt((f"torch=={RELEASE}",)),)
    cpu = f"torch=={RELEASE}+cpu"
    named = (Attempt(("--extra-index-url", facts.index, cpu)),) if facts.index else ()
    return (Attempt((cpu,)), *named, Attempt((f"torch=={RELEASE}",), SIZE_NOTICE))


def satisfied(version: str | None) -> bool:
    """Whether an installed torch will do, whichever build it is."""
    match = re.match(r"(\d+)\.(\d+)", version or "")
    return match is not None and (int(match[1]), int(match[2])) >= LEAST


def look() -> Facts:
    """The facts of this machine and this environment."""
    index = os.environ.get(INDEX_VARIABLE) or None
    return Facts(platform.system(), nvidia_present(), _version("torch"), _version("triton"), index)


def nvidia_present() -> bool:
    """Whether a driver for an NVIDIA GPU is here: its files, or its library."""
    if Path("/proc/driver/nvidia/version").exists():
        return True
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def take(step: Step, pip: tuple[str, ...] = (sys.executable, "-m", "pip", "install", "--only-binary=:all:")) -> bool:
    """Run the attempts of a step until one succeeds; whether the step is done or may be left out."""
    for number, attempt in enumerate(step.attempts):
        print(attempt.notice + f"{step.package}: pip install {' '.join(attempt.arguments)}", file=sys.stderr, flush=True)
        # a failure that another attempt follows is told in one line: pip's whole complaint reads as the end of the installation
        followed = number < len(step.attempts) - 1 or bool(step.optional)
        done = subprocess.run([*pip, *attempt.arguments], stderr=subprocess.PIPE if followed else None, text=True, check=False)
        if done.returncode == 0:
            return True
        print(f"{step.package}: {last_line(done.stderr)}", file=sys.stderr)
    if step.optional:
        print(step.optional, file=sys.stderr)
    return bool(step.optional)


def last_line(text: str | None) -> str:
    """What pip said last, such as 'ERROR: No matching distribution found for torch'."""
    lines = [line.strip() for line in (text or "").splitlines() if line.strip()]
    return lines[-1] if lines else "pip failed"


def main() -> int:
    """Exit code 1 where torch could not be had."""
    return 0 if all(take(step) for step in plan(look())) else 1


if __name__ == "__main__":
    sys.exit(main())
