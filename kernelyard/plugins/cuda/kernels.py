"""The CUDA kernels over rows as data: what each supports, in what order they are preferred."""

from __future__ import annotations

from kernelyard.plugins.cuda import spaces
from kernelyard.plugins.cuda.rmsnorm_backward import alike
from kernelyard.registry.kernel import Kernel, Support
from kernelyard.registry.spec import YES, Answer, Determinism, Workload, no

DTYPES = ("float32", "bfloat16", "float16")
ROW_MOST_COLS = 32768
"""Of 16 bits: 4 vectors a thread of 1024. Wider rows are a cluster's."""
MOST_COLS = 131072
MOST_ROWS = 2**27
"""A grid has 2^31 - 1 blocks at most, and a row up to 8 of them."""


def two_dimensions(workload: Workload) -> Answer:
    """Whether leading dimensions are one, with one stride between rows: what a row kernel addresses."""
    for name, spec in workload.tensors:
        if spec is not None and len(spec.shape) > 2 and spec.numel:
            return no(f"{name} with strides {spec.strides} can't be viewed as (rows, cols) with one stride between rows")
    return YES


def _rows(most_cols: int, least_cols: int = 0) -> Support:
    return Support(("cuda",), DTYPES, most={"cols": most_cols, "rows": MOST_ROWS}, least={"cols": least_cols}, predicates=(two_dimensions,))


KERNELS = (
    Kernel(
        "cuda.row", "rmsnorm", "cuda", "a row in the registers of a few warps, 16-byte accesses at any width",
        "kernelyard.plugins.cuda.rmsnorm:row", _rows(ROW_MOST_COLS), spaces.RMSNORM_ROW,
        files=("rmsnorm.cu", "rows.cuh", "rows.py"), fallbacks=("triton.row",), priority=5,
    ),
    Kernel(
        "cuda.cluster", "rmsnorm", "cuda", "a wide row in the registers of a thread block cluster, read once",
        "kernelyard.plugins.cuda.rmsnorm:cluster", _rows(MOST_COLS, 4096), spaces.RMSNORM_CLUSTER,
        files=("rmsnorm.cu", "rows.cuh", "rows.py"), fallbacks=("triton.sweep",), priority=4,
    ),
    Kernel(
        "cuda.row", "softmax", "cuda", "a row in the registers of a few warps, 16-byte accesses at any width",
        "kernelyard.plugins.cuda.softmax:row", _rows(ROW_MOST_COLS), spaces.SOFTMAX_ROW,
        files=("softmax.cu", "rows.cuh", "rows.py"), fallbacks=("triton.row",), priority=5,
    ),
    Kernel(
        "cuda.cluster", "softmax", "cuda", "a wide row in the registers of a thread block cluster, read once",
        "kernelyard.plugins.cuda.softmax:cluster", _rows(MOST_COLS, 4096), spaces.SOFTMAX_CLUSTER,
        files=("softmax.cu", "rows.cuh", "rows.py"), fallbacks=("triton.sweep",), priority=4,
    ),
    Kernel(
        "cuda.cluster", "rmsnorm_backward", "cuda", "persistent clusters, rows prefetched, dw in registers",
        "kernelyard.plugins.cuda.rmsnorm_backward:cluster",
        Support(("cuda",), DTYPES, most={"cols": MOST_COLS, "rows": MOST_ROWS}, predicates=(two_dimensions, alike)), spaces.BACKWARD,
        files=("rmsnorm_backward.cu", "rows.cuh", "rows.py"), fallbacks=("triton.split",), priority=5,
        determinism=Determinism.RUN_TO_RUN,
    ),
)  # fmt: skip
