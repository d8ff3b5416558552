"""FlashAttention-4 as kernels of kernelyard's ops of attention, under a backend of their own.

What stands here is data: `kernelyard list` imports this module and nothing of FA4. `support` has the envelopes, `probe` whether FA4
can run here, `build` makes a kernel callable, and `attention` calls FA4's own function. It knows only `kernelyard.registry`. All
priorities are negative: a kernel of it serves where it is pinned or where tuning chose it.
"""

from __future__ import annotations

from kernelyard.registry.backend import Backend
from kernelyard.registry.discovery import Plugin
from kernelyard.registry.kernel import Kernel, Support
from kernelyard.registry.spec import Determinism
from kernelyard_fa4 import support


def _kernel(op: str, summary: str, envelope: Support) -> Kernel:
    entry = f"kernelyard_fa4.attention:{op}"
    return Kernel(f"fa4.{op}", op, "fa4", summary, entry, envelope, priority=-1, determinism=Determinism.RUN_TO_RUN)


KERNELS = (
    _kernel("attention", "a program a tile of queries, warp-specialised, heads that share keys in one tile", support.ATTENTION),
    _kernel("attention_decode", "a program a sequence and head of k: FA4 does not split the keys on Hopper", support.DECODE),
)

plugin = Plugin(
    name="fa4",
    kernels=KERNELS,
    backends=(
        Backend(
            name="fa4",
            summary="FlashAttention-4's CuTe DSL kernels, called by its function below autograd",
            devices=("cuda",),
            probe="kernelyard_fa4.probe:probe",
            entry="kernelyard_fa4.build:builder",
        ),
    ),
)
