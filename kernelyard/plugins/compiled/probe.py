"""Whether Inductor has the compiler that it needs: C++ on a CPU, Triton on a GPU."""

from __future__ import annotations

import os
import shlex
import shutil
from typing import TYPE_CHECKING

from kernelyard.registry.answer import YES, Answer, no
from kernelyard.registry.machine import cuda_ready, installed

if TYPE_CHECKING:
    from kernelyard.registry.backend import Purpose


def probe(device: str, purpose: Purpose) -> Answer:
    """Looks only for what must be there; whether it compiles is seen in the build."""
    if not installed("torch"):
        return no("torch is not installed: pip install torch")
    if device == "cuda":
        ready = cuda_ready()
        return ready if not ready or installed("triton") else no("triton is not installed, Inductor needs it on a GPU: pip install triton")
    named = shlex.split(os.environ.get("CXX", ""))[:1]
    wanted = [*named, "g++", "clang++"]
    if any(map(shutil.which, wanted)):
        return YES
    return no(f"no C++ compiler found (looked for {', '.join(wanted)}): install one, or name it by CXX")
