"""Whether Gluon kernels for Hopper can run on a device type of this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernelyard.registry.answer import YES, Answer, no
from kernelyard.registry.machine import cuda_ready, identity, installed

if TYPE_CHECKING:
    from kernelyard.registry.backend import Purpose

HOPPER = "sm_90"


def probe(device: str, purpose: Purpose) -> Answer:
    """A GPU of Hopper's kind, whose wgmma instructions no other has, and a Triton with Gluon. A CPU will not do for a check either."""
    if not installed("triton"):
        return no("triton is not installed: pip install triton (Linux)")
    if device != "cuda":
        return no(f"Gluon runs on cuda, not on {device}")
    if not (ready := cuda_ready()):
        return ready
    capability = identity("cuda").capability
    return YES if capability == HOPPER else no(f"its kernels need {HOPPER} (Hopper), this GPU is {capability}")
