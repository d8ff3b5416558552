"""The declaration of this plugin: its kernels and its backend. A probe, which lies beside it, must not import it: listing asks probes."""

from __future__ import annotations

from kernelyard.plugins.gluon_ws.kernels import KERNELS
from kernelyard.registry.backend import Backend
from kernelyard.registry.discovery import Plugin

plugin = Plugin(
    name="gluon",
    kernels=KERNELS,
    backends=(
        Backend(
            name="gluon",
            summary="Gluon, warp-specialised for Hopper",
            devices=("cuda",),
            probe="kernelyard.plugins.gluon_ws.probe:probe",
            entry="kernelyard.plugins.gluon_ws.build:builder",
            slow_builds=True,
        ),
    ),
)
