"""The `triton` backend: kernels in Triton, compiled on an NVIDIA GPU, interpreted on a CPU for checking alone.

`kernels` declares them, `spaces` and `defaults` say what of each is tuned and why, `probe` whether they can run; one file an op
holds the code.
`build` compiles and launches, `offline` compiles without a GPU. It does not know how kernels are timed or chosen.
Try it: `kernelyard check rmsnorm --kernel triton.row`.
"""

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
