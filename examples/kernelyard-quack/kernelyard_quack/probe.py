"""Whether quack's kernels can run here. Reads metadata; imports neither quack, nor the CuTe DSL, nor torch."""

from __future__ import annotations

from importlib import metadata

from kernelyard.registry.backend import Purpose
from kernelyard.registry.machine import cuda_ready, identity, installed
from kernelyard.registry.spec import YES, Answer, no

WRITTEN_FOR = "0.6.5"
"""The version whose functions are called here: they are below quack's public interface and may change with any release."""

INSTALL = f"pip install 'quack-kernels[cu13]=={WRITTEN_FOR}'"
LEAST_CAPABILITY = 90
"""Hopper. quack compiles for older GPUs too; nothing was tried there."""


def probe(device: str, purpose: Purpose) -> Answer:
    """quack in the version this was written for, the CuTe DSL, and an NVIDIA GPU of Hopper or later; for a check too."""
    if not (answer := _packages()):
        return answer
    if device != "cuda":
        return no(f"quack's kernels run on cuda, not on {device}")
    if not (answer := cuda_ready()):
        return answer
    capability = identity("cuda").capability
    new_enough = int(capability.removeprefix("sm_")) >= LEAST_CAPABILITY
    return YES if new_enough else no(f"the GPU is {capability}, these kernels are declared from sm_{LEAST_CAPABILITY} on")


def _packages() -> Answer:
    for module, what in (("quack", "quack"), ("cutlass", "the CuTe DSL, nvidia-cutlass-dsl,"), ("tvm_ffi", "apache-tvm-ffi")):
        if not installed(module):
            return no(f"{what} is not installed: {INSTALL}")
    try:
        version = metadata.version("quack-kernels")
    except metadata.PackageNotFoundError:
        return no(f"a package called quack is on the path, but not quack-kernels with its metadata: {INSTALL}")
    return YES if version == WRITTEN_FOR else no(f"quack-kernels {version} is installed, these kernels call functions of {WRITTEN_FOR}")
