"""The Triton kernels as data: what each supports, in what order they are preferred."""

from __future__ import annotations

from kernelyard.plugins.triton_jit import norms, spaces
from kernelyard.plugins.triton_jit.rows import DTYPES, rows_support
from kernelyard.registry.kernel import Kernel, Support
from kernelyard.registry.spec import Determinism


def _kernel(op: str, name: str, summary: str, **rest: object) -> Kernel:
    entry = f"kernelyard.plugins.triton_jit.{op}:{name}"
    return Kernel(f"triton.{name}", op, "triton", summary, entry, files=("launch.py",), determinism=Determinism.RUN_TO_RUN, **rest)  # type: ignore[arg-type]


KERNELS = (
    *norms.KERNELS,
    _kernel(
        "softmax", "row", "a tile of whole rows in registers, read once",
        support=rows_support(spaces.ROW_MOST_COLS), space=spaces.ROW, priority=30, fallbacks=("triton.sweep",),
    ),
    _kernel(
        "softmax", "sweep", "an online sweep over a wide row, then one that writes, from L2",
        support=rows_support(spaces.SWEEP_MOST_COLS), space=spaces.SWEEP, priority=20,
    ),
    _kernel(
        "vector_add", "stream", "one block of elements a program",
        support=Support(("cuda",), DTYPES, contiguous=True), space=spaces.STREAM, priority=30,
    ),
)  # fmt: skip
