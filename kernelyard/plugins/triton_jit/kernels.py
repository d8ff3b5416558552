"""The Triton kernels as data: what each supports, in what order they are preferred."""

from __future__ import annotations

from kernelyard.plugins.triton_jit import spaces
from kernelyard.registry.kernel import Kernel, Support
from kernelyard.registry.spec import YES, Answer, Determinism, Workload, no

DTYPES = ("float32", "bfloat16", "float16")


def two_dimensions(workload: Workload) -> Answer:
    """Whether leading dimensions are one, with one stride between rows: what a row kernel addresses."""
    for name, spec in workload.tensors:
        if spec is not None and len(spec.shape) > 2 and spec.numel:
            return no(f"{name} with strides {spec.strides} can't be viewed as (rows, cols) with one stride between rows")
    return YES


def _rows(most_cols: int) -> Support:
    return Support(("cuda",), DTYPES, most={"cols": most_cols, "rows": 2**31 - 32}, predicates=(two_dimensions,))


def _kernel(op: str, name: str, summary: str, **rest: object) -> Kernel:
    entry = f"kernelyard.plugins.triton_jit.{op}:{name}"
    return Kernel(f"triton.{name}", op, "triton", summary, entry, files=("launch.py",), determinism=Determinism.RUN_TO_RUN, **rest)  # type: ignore[arg-type]


KERNELS = (
    _kernel(
        "rmsnorm", "row", "a tile of whole rows in registers, read once",
        support=_rows(spaces.ROW_MOST_COLS), space=spaces.RMSNORM_ROW, priority=30, fallbacks=("triton.sweep",),
    ),
    _kernel(
        "rmsnorm", "persistent", "a fixed grid walks over rows, the weight held in registers",
        support=_rows(spaces.PERSISTENT_MOST_COLS), space=spaces.PERSISTENT, priority=10, fallbacks=("triton.row",),
    ),
    _kernel(
        "rmsnorm", "sweep", "two sweeps over a wide row, the second from L2",
        support=_rows(spaces.SWEEP_MOST_COLS), space=spaces.SWEEP, priority=20,
    ),
    _kernel(
        "softmax", "row", "a tile of whole rows in registers, read once",
        support=_rows(spaces.ROW_MOST_COLS), space=spaces.ROW, priority=30, fallbacks=("triton.sweep",),
    ),
    _kernel(
        "softmax", "sweep", "an online sweep over a wide row, then one that writes, from L2",
        support=_rows(spaces.SWEEP_MOST_COLS), space=spaces.SWEEP, priority=20,
    ),
    _kernel(
        "vector_add", "stream", "one block of elements a program",
        support=Support(("cuda",), DTYPES, contiguous=True), space=spaces.STREAM, priority=30,
    ),
)  # fmt: skip
