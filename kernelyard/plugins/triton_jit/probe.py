"""Whether Triton kernels can run, or at least be checked, on a device type of this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernelyard.registry.answer import YES, Answer, no
from kernelyard.registry.machine import cuda_ready, installed

if TYPE_CHECKING:
    from kernelyard.registry.backend import Purpose


def probe(device: str, purpose: Purpose) -> Answer:
    """On a GPU compiled; on a CPU interpreted, for checking alone: an interpreter's time says nothing."""
    if not installed("triton"):
        return no("triton is not installed: pip install triton (Linux)")
    if device == "cuda":
        return cuda_ready()
    return YES if purpose == "check" else no("no NVIDIA GPU; `kernelyard check` runs it through Triton's interpreter")
