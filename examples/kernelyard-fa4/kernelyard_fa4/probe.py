"""Whether FA4's kernels can run here. Reads metadata; imports neither FA4, nor the CuTe DSL, nor torch."""

from __future__ import annotations

from importlib import metadata

from kernelyard.registry.backend import Purpose
from kernelyard.registry.machine import cuda_ready, identity, installed
from kernelyard.registry.spec import YES, Answer, no

WRITTEN_FOR = "4.0.0b36"
"""The version whose function is called here: it is below FA4's public interface and may change with any release."""

INSTALL = f"pip install 'flash-attn-4[cu13]=={WRITTEN_FOR}'"
CAPABILITY = "sm_90"
"""Hopper. FA4 has other kernels for other GPUs, with limits of their own, which are not declared here."""
NEEDED = (
    ("flash_attn", "FlashAttention-4"),
    ("quack", "quack, on whose parts FA4 is built,"),
    ("cutlass", "the CuTe DSL, nvidia-cutlass-dsl,"),
    ("tvm_ffi", "apache-tvm-ffi"),
)


def probe(device: str, purpose: Purpose) -> Answer:
    """FA4 in the version this was written for, what it runs on, and a Hopper GPU; for a check too."""
    if not (answer := _packages()):
        return answer
    if device != "cuda":
        return no(f"FA4's kernels run on cuda, not on {device}")
    if not (answer := cuda_ready()):
        return answer
    capability = identity("cuda").capability
    return YES if capability == CAPABILITY else no(f"the GPU is {capability}, what is declared are FA4's kernels for {CAPABILITY}")


def _packages() -> Answer:
    for module, what in NEEDED:
        if not installed(module):
            return no(f"{what} is not installed: {INSTALL}")
    try:
        version = metadata.version("flash-attn-4")
    except metadata.PackageNotFoundError:
        return no(f"a package called flash_attn is on the path, but not flash-attn-4 with its metadata: {INSTALL}")
    return YES if version == WRITTEN_FOR else no(f"flash-attn-4 {version} is installed, these kernels call a function of {WRITTEN_FOR}")
