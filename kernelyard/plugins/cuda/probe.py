"""Whether CUDA C++ can be built and run here, with the first thing that is missing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernelyard.plugins.cuda.toolkit import find_nvcc
from kernelyard.plugins.native.tools import ninja_and_tvm_ffi
from kernelyard.registry.answer import YES, Answer, no
from kernelyard.registry.machine import cuda_ready

if TYPE_CHECKING:
    from kernelyard.registry.backend import Purpose


def probe(device: str, purpose: Purpose) -> Answer:
    """nvcc, ninja, tvm_ffi and a GPU. There is no interpreter: a check needs them too, and no CPU will do."""
    for needed in (can_build(), cuda_ready()):
        if not needed:
            return needed
    return YES if device == "cuda" else no(f"CUDA C++ runs on cuda, not on {device}")


def can_build() -> Answer:
    """Whether CUDA C++ can be built here, with or without a GPU."""
    search = find_nvcc()
    return ninja_and_tvm_ffi() if search.nvcc else no(search.reason())
