"""Whether a kernel gives back the memory that its calls took."""

from __future__ import annotations

import ctypes
import gc
import resource
from pathlib import Path

import torch

from kernelyard.registry.backend import Executable
from kernelyard.registry.op import Op
from kernelyard.registry.spec import Workload
from kernelyard.verify.inputs import values

MOST_BYTES = 4 << 20
WARM_CALLS, CALLS = 4, 24
"""What a kernel allocates once, for all calls, shows in the first few."""


def leak(op: Op, executable: Executable, workload: Workload, device: torch.device) -> str:
    """How much memory each call keeps, in words; empty when calls give back what they took.

    On CUDA by torch's own count; on a CPU by glibc's, else by the resident size of the process, which misses what lies
    in memory that was freed before. Only half an output a call or more is seen, of outputs of 64 KiB or more.
    """
    args = values(op, workload, device, 0, "random")
    output_bytes = sum(empty.nbytes for empty in op.empty(*args))
    if output_bytes < 1 << 16:
        return ""
    for _ in range(WARM_CALLS):
        executable.call(*args)
    before = _used(device)
    for _ in range(CALLS):
        executable.call(*args)
    kept = (_used(device) - before) / CALLS
    if kept < output_bytes / 2:
        return ""
    return f"a memory leak: {CALLS} calls kept {kept * CALLS / 1e6:.1f} MB, about {kept / output_bytes:.1f} of an output each"


class _Mallinfo(ctypes.Structure):
    """glibc's count over all arenas: bytes in blocks handed out, and in blocks that are mappings of their own."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")
    )


def _used(device: torch.device) -> int:
    gc.collect()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        return torch.cuda.memory_allocated(device)
    if (mallinfo := getattr(ctypes.CDLL(None), "mallinfo2", None)) is not None:
        mallinfo.restype = _Mallinfo
        counts = mallinfo()
        return int(counts.uordblks + counts.hblkhd)
    if (statm := Path("/proc/self/statm")).exists():
        return int(statm.read_text().split()[1]) * resource.getpagesize()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
