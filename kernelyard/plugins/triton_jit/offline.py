"""What a Triton kernel becomes for a GPU that is not here: registers, spills, shared memory and PTX, no timing."""

from __future__ import annotations

import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernelyard.errors import BuildFailed
from kernelyard.plugins.triton_jit.build import choose_mode
from kernelyard.registry.backend import TritonLaunch
from kernelyard.registry.kernel import Kernel
from kernelyard.registry.lazy import load
from kernelyard.registry.op import Op
from kernelyard.registry.spec import Config, Workload

HOPPER = 90


@dataclass(frozen=True, slots=True)
class Offline:
    """One config compiled: bytes of local memory a thread (spills and stack), and the widest global load in bytes a thread.

    Of several launches the most of each.
    """

    registers: int
    local_bytes: int
    shared_bytes: int
    load_bytes: int
    store_bytes: int
    ptx: str


def compile_only(op: Op, kernel: Kernel, workload: Workload, config: Config, target: Any = None) -> Offline:
    """Compile for `target` (a triton GPUTarget; Hopper if none is given) without a GPU; raises BuildFailed."""
    choose_mode(interpret=False)
    from triton.backends.compiler import GPUTarget

    from kernelyard.plugins.triton_jit.compile import compiled

    first: TritonLaunch = load(kernel.entry)(workload, config)
    goal = target or GPUTarget("cuda", HOPPER, 32)
    return _most([_told(compiled(op, launch, workload, goal, first.scratch)) for launch in first.all()])


def _told(handle: Any) -> Offline:
    ptx = str(handle.asm["ptx"])
    registers, local = resource_usage(bytes(handle.asm["cubin"]))
    return Offline(registers, local, int(handle.metadata.shared), widest(ptx, "ld"), widest(ptx, "st"), ptx)


def _most(launches: list[Offline]) -> Offline:
    """Of several launches the most of each, and the code of all."""
    counts = ("registers", "local_bytes", "shared_bytes", "load_bytes", "store_bytes")
    most = {name: max((getattr(one, name) for one in launches), default=0) for name in counts}
    return Offline(**most, ptx="\n".join(one.ptx for one in launches))


def widest(ptx: str, kind: str) -> int:
    """Bytes of the widest global access of a kind, 'ld' or 'st', that one thread makes at once."""
    accesses = re.findall(rf"{kind}\.global[.:\w]*?(?:\.v(\d))?\.[bfus](\d+)\b", ptx)
    return max((int(count or 1) * int(bits) // 8 for count, bits in accesses), default=0)


def resource_usage(cubin: bytes) -> tuple[int, int]:
    """Registers and local bytes a thread, told by the cuobjdump that Triton brings."""
    import triton.backends.nvidia

    tool = Path(triton.backends.nvidia.__file__).parent / "bin" / "cuobjdump"
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "kernel.cubin"
        file.write_bytes(cubin)
        told = subprocess.run([str(tool), "-res-usage", str(file)], capture_output=True, text=True, check=False)
    found = {name: int(value) for name, value in re.findall(r"\b(REG|STACK|LOCAL):(\d+)", told.stdout + told.stderr)}
    if "REG" not in found:
        raise BuildFailed("cuobjdump told nothing of the kernel's registers.", log=told.stderr)
    return found["REG"], found.get("STACK", 0) + found.get("LOCAL", 0)
