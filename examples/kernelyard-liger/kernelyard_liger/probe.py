"""Whether Liger's kernels can run here. Reads metadata; imports neither Liger nor torch."""

from __future__ import annotations

from importlib import metadata

from kernelyard.registry.backend import Purpose
from kernelyard.registry.machine import cuda_ready, installed
from kernelyard.registry.spec import YES, Answer, no

WRITTEN_FOR = "0.8.5"
"""The version whose functions are called here: they are below Liger's public interface and may change with any release."""


def probe(device: str, purpose: Purpose) -> Answer:
    """Liger in the version this was written for, Triton, and an NVIDIA GPU; for a check too."""
    if not (answer := _packages()):
        return answer
    return cuda_ready() if device == "cuda" else no(f"Liger's kernels run on cuda, not on {device}")


def _packages() -> Answer:
    for module in ("liger_kernel", "triton"):
        if not installed(module):
            return no(f"{module} is not installed: pip install liger-kernel=={WRITTEN_FOR}")
    try:
        version = metadata.version("liger-kernel")
    except metadata.PackageNotFoundError:
        return no(f"liger_kernel is on the path without its metadata, so its version is unknown: pip install liger-kernel=={WRITTEN_FOR}")
    return YES if version == WRITTEN_FOR else no(f"liger-kernel {version} is installed, these kernels call functions of {WRITTEN_FOR}")
