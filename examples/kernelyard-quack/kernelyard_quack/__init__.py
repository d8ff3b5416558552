"""quack's kernels as kernels of kernelyard's row ops and of matmul, under a backend of their own.

What stands here is data: `kernelyard list` imports this module and nothing of quack. `support` and, of matmul, `products` have the
envelopes, `probe` whether quack can run here, `build` makes a kernel callable, and one file an op calls quack's own functions. It knows
only `kernelyard.registry`. All priorities are negative: a kernel of it serves where it is pinned or where tuning chose it.
quack 0.6.5 has no swiglu of its own, only as an epilogue of its matrix products.
"""

from __future__ import annotations

from kernelyard.registry.backend import Backend
from kernelyard.registry.discovery import Plugin
from kernelyard.registry.kernel import Kernel, Support
from kernelyard.registry.space import ConfigSpace
from kernelyard.registry.spec import Determinism
from kernelyard_quack import products, support

RSTD_FIRST = "rstd is made again by torch first: one more read of x than where quack's own forward saved it"
NOT_TUNED = ConfigSpace()


def _kernel(op: str, file: str, summary: str, envelope: Support, space: ConfigSpace = NOT_TUNED) -> Kernel:
    entry = f"kernelyard_quack.{file}:{op}"
    return Kernel(f"quack.{op}", op, "quack", summary, entry, envelope, space, priority=-1, determinism=Determinism.RUN_TO_RUN)


KERNELS = (
    _kernel("rmsnorm", "norms", "rows through shared memory, wide ones over a cluster", support.NORM),
    _kernel("rmsnorm_backward", "norms", f"persistent, torch sums dw; {RSTD_FIRST}", support.NORM_BACKWARD),
    _kernel("add_rmsnorm", "norms", "sum and norm of rows through shared memory", support.NORM),
    _kernel("add_rmsnorm_backward", "norms", f"persistent, torch sums dw; {RSTD_FIRST}", support.NORM_BACKWARD),
    _kernel("softmax", "softmax", "rows through shared memory, read once", support.SOFTMAX),
    _kernel("softmax_backward", "softmax", "rows through shared memory, both tensors read once", support.SOFTMAX_BACKWARD),
    _kernel("rope", "rope", "tiles of tokens and a head; angles are looked up by torch first", support.ROPE),
    _kernel("matmul", "matmul", "persistent, tiles by TMA, two warpgroups in turns or together", products.MATMUL, products.SPACE),
)

plugin = Plugin(
    name="quack",
    kernels=KERNELS,
    backends=(
        Backend(
            name="quack",
            summary="quack's CuTe DSL kernels, called by its functions below autograd",
            devices=("cuda",),
            probe="kernelyard_quack.probe:probe",
            entry="kernelyard_quack.build:builder",
        ),
    ),
)
