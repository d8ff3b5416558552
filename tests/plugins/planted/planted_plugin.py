"""The planted kernels as data, named by KERNELYARD_EXTRA_PLUGINS."""

from __future__ import annotations

from kernelyard.registry.discovery import Plugin
from kernelyard.registry.kernel import Kernel, Support

NAMES = (
    "shifted", "far", "differing", "agreeing", "early", "neighbour", "adding", "every_other", "described", "pointed",
    "borrowing", "failing",
)  # fmt: skip

plugin = Plugin(
    name="planted",
    kernels=tuple(
        Kernel(f"triton.{name}", "vector_add", "triton", "planted", f"planted_triton:{name}", Support(("cuda",), ("float32",)), priority=-9)
        for name in NAMES
    ),
)
