"""The declaration of this plugin: its kernels and its backend. A probe, which lies beside it, must not import it: listing asks probes."""

from __future__ import annotations

from kernelyard.plugins.triton_jit.kernels import KERNELS
from kernelyard.registry.backend import Backend
from kernelyard.registry.discovery import Plugin

plugin = Plugin(
    name="triton_jit",
    kernels=KERNELS,
    backends=(
        Backend(
            name="triton",
            summary="Triton, compiled on a GPU; its interpreter checks on a CPU",
            devices=("cuda",),
            probe="kernelyard.plugins.triton_jit.probe:probe",
            entry="kernelyard.plugins.triton_jit.build:builder",
        ),
    ),
)
