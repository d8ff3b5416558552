"""Whether this machine can build C++ kernels, found without torch, tvm_ffi or a compiler run."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from kernelyard.plugins.native.tools import APPLE_COMPILERS, cxx, ninja_and_tvm_ffi
from kernelyard.registry.answer import Answer, no

if TYPE_CHECKING:
    from kernelyard.registry.backend import Purpose

INSTALL = {
    "linux": "install one (Debian, Ubuntu: apt install g++; Fedora: dnf install gcc-c++) or set CXX to one",
    "darwin": "install the command line tools (xcode-select --install) or set CXX to one",
}


def available(device_type: str, purpose: Purpose = "run") -> Answer:
    """A C++ compiler, ninja and tvm_ffi are all it needs; each no carries its remedy."""
    if device_type != "cpu":
        return no(f"C++ kernels run on cpu, not on {device_type}")
    name = cxx()[0]
    remedy = INSTALL.get(sys.platform, "install one or set CXX to one")
    program = shutil.which(name)
    if program is None:
        return no(f"no C++ compiler: '{name}' was not found on PATH; {remedy}")
    if sys.platform == "darwin" and program.startswith("/usr/bin/") and not any(Path(p).exists() for p in APPLE_COMPILERS):
        return no(f"no C++ compiler: {program} is a stub until the command line tools are there; {remedy}")
    return ninja_and_tvm_ffi()
