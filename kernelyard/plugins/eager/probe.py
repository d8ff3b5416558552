"""Whether torch runs on a device type of this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernelyard.registry.answer import YES, Answer, no
from kernelyard.registry.machine import cuda_ready, installed

if TYPE_CHECKING:
    from kernelyard.registry.backend import Purpose


def probe(device: str, purpose: Purpose) -> Answer:
    """torch on a CPU needs nothing more; on CUDA, a GPU and a torch built for it."""
    if not installed("torch"):
        return no("torch is not installed: pip install torch")
    return cuda_ready() if device == "cuda" else YES
