"""Liger's kernels as kernels of kernelyard's row ops, under a backend of their own.

What stands here is data: `kernelyard list` imports this module and nothing of Liger. `support` has the envelopes, `probe` whether
Liger can run here, `build` makes a kernel callable, and one file an op calls Liger's own functions. It knows only
`kernelyard.registry`. All priorities are negative: a kernel of it serves where it is pinned or where tuning chose it.
"""

from __future__ import annotations

from kernelyard.registry.backend import Backend
from kernelyard.registry.discovery import Plugin
from kernelyard.registry.kernel import Kernel, Support
from kernelyard.registry.spec import Determinism
from kernelyard_liger import support

RSTD_FIRST = "rstd is made again by torch first: one more read of x than where Liger's own forward saved it"


def _kernel(op: str, file: str, summary: str, envelope: Support, determinism: Determinism = Determinism.RUN_TO_RUN) -> Kernel:
    entry = f"kernelyard_liger.{file}:{op}"
    return Kernel(f"liger.{op}", op, "liger", summary, entry, envelope, priority=-1, determinism=determinism)


KERNELS = (
    _kernel("rmsnorm", "norms", "a program a row; 16 rows where there are many short ones", support.NORM),
    _kernel("rmsnorm_backward", "norms", f"a program a multiprocessor, torch sums dw; {RSTD_FIRST}", support.NORM),
    _kernel("add_rmsnorm", "norms", "sum and norm in one program a row", support.ADD_NORM),
    _kernel("add_rmsnorm_backward", "norms", f"a program a multiprocessor, torch sums dw; {RSTD_FIRST}", support.ADD_NORM_BACKWARD),
    _kernel("softmax", "softmax", "a program a row, read once", support.SOFTMAX),
    _kernel("softmax_backward", "softmax", "a program a row, both tensors read once", support.SOFTMAX_BACKWARD),
    _kernel("swiglu", "swiglu", "a program a row, from two tensors or a packed one", support.SWIGLU),
    _kernel("swiglu_backward", "swiglu", "a program a row; in place, so on copies of a and b where they are two", support.SWIGLU_BACKWARD),
    _kernel("rope", "rope", "a program a token; in place, so on a copy of x, with looked-up angles and keys of one head", support.ROPE),
)

plugin = Plugin(
    name="liger",
    kernels=KERNELS,
    backends=(
        Backend(
            name="liger",
            summary="Liger's Triton kernels, called by its functions below autograd",
            devices=("cuda",),
            probe="kernelyard_liger.probe:probe",
            entry="kernelyard_liger.build:builder",
        ),
    ),
)
