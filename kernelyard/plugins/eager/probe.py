"""Whether torch runs on a device type of this machine."""

from __future__ import annotations

from kernelyard.registry.backend import Purpose
from kernelyard.registry.machine import cuda_ready, installed
from kernelyard.registry.spec import YES, Answer, no


def probe(device: str, purpose: Purpose) -> Answer:
    """torch on a CPU needs nothing more; on CUDA, a GPU and a torch built for it."""
    if not installed("torch"):
        return no("torch is not installed: pip install torch")
    return cuda_ready() if device == "cuda" else YES
