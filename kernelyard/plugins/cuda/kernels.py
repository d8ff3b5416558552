"""The CUDA kernels over rows as data: what each supports, in what order they are preferred."""

from __future__ import annotations

from collections.abc import Callable

from kernelyard.plugins.cuda import ring, spaces, staged
from kernelyard.plugins.cuda.rmsnorm_backward import alike
from kernelyard.plugins.cuda.rows import vector
from kernelyard.registry.kernel import Kernel, Support
from kernelyard.registry.space import ConfigSpace
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


HALVES = ("bfloat16", "float16")
MANY_ROWS = spaces.FEW_ROWS + 1


def odd_width(workload: Workload) -> Answer:
    """Whether rows aren't whole 16 bytes."""
    return no("rows are whole vectors") if workload.dim("cols") % vector(workload) == 0 else YES


def _measured(least_cols: int, most_cols: int, *more: Callable[[Workload], Answer]) -> Support:
    """Many rows of so many columns of 16 bits: a range between points that were timed."""
    return Support(("cuda",), HALVES, least={"rows": MANY_ROWS, "cols": least_cols}, most={"cols": most_cols}, predicates=more)


RING = Support(
    ("cuda",), DTYPES, most={"cols": MOST_COLS, "rows": MOST_ROWS}, least={"cols": ring.LEAST_COLS},
    predicates=(two_dimensions, ring.whole_vectors),
)  # fmt: skip

STAGED = Support(
    ("cuda",), DTYPES, most={"cols": staged.MOST_COLS, "rows": MOST_ROWS}, least={"cols": ring.LEAST_COLS},
    predicates=(two_dimensions, staged.rows_start_at_16_bytes),
)  # fmt: skip


def _staged(op: str, entry: str, space: ConfigSpace, *files: str, first: tuple[Support, ...] = ()) -> Kernel:
    return Kernel(
        "cuda.staged", op, "cuda", "a wide row in the shared memory of a few blocks, read once; many blocks a multiprocessor",
        f"kernelyard.plugins.cuda.{entry}", STAGED, space,
        files=(*files, "staged.cuh", "vectors.cuh", "rows.cuh", "rows.py", "staged.py"), fallbacks=("triton.sweep",), priority=2,
        priority_where=tuple((where, 46) for where in first),
    )  # fmt: skip


KERNELS = (
    Kernel(
        "cuda.row", "rmsnorm", "cuda", "a row in the registers of a few warps, 16-byte accesses at any width",
        "kernelyard.plugins.cuda.rmsnorm:row", _rows(ROW_MOST_COLS), spaces.RMSNORM_ROW,
        files=("rmsnorm.cu", "rmsnorm.cuh", "vectors.cuh", "rows.cuh", "rows.py", "ring.py"), fallbacks=("triton.row",), priority=5,
        # us of cuda.row and the next: 33.9 and 34.6 at 8192x4096, 66.6 and 67.3 at 16384x4096, 34.2 and 35.4 at 4096x8192, 6.8 and 7.6
        # at 1000x4095; 4.93 and 5.02 at 4096x768; 1.56 and 1.44 at 16x4096.
        priority_where=((_measured(4095, 8192), 45), (_measured(768, 768), 45)),
    ),
    Kernel(
        "cuda.cluster", "rmsnorm", "cuda", "a wide row in the registers of a thread block cluster, read once",
        "kernelyard.plugins.cuda.rmsnorm:cluster", _rows(MOST_COLS, 4096), spaces.RMSNORM_CLUSTER,
        files=("rmsnorm.cu", "rmsnorm.cuh", "vectors.cuh", "rows.cuh", "rows.py", "ring.py"), fallbacks=("triton.sweep",), priority=4,
        priority_where=((_measured(32768, 32768), 45),),  # 70.7 us at 2048x32768; cuda.row 73, triton.persistent 75
    ),
    Kernel(
        "cuda.ring", "rmsnorm", "cuda", "persistent blocks, whole rows by bulk copies into a ring in shared memory",
        "kernelyard.plugins.cuda.rmsnorm:ring", RING, ring.SPACE,
        files=("rmsnorm_ring.cu", "rmsnorm.cuh", "ring.cuh", "vectors.cuh", "rows.cuh", "rows.py", "ring.py"),
        fallbacks=("cuda.row",), priority=3,
        # 9.5 us at 8192x1024, cuda.row 10.4, triton.row 10.8; 71.1 at 2048x32768, cuda.cluster 71.2; behind cuda.row by 5 to 8% at 4096.
        priority_where=((_measured(1024, 1536), 46),),
    ),
    Kernel(
        "cuda.row", "softmax", "cuda", "a row in the registers of a few warps, 16-byte accesses at any width",
        "kernelyard.plugins.cuda.softmax:row", _rows(ROW_MOST_COLS), spaces.SOFTMAX_ROW,
        files=("softmax.cu", "softmax.cuh", "vectors.cuh", "rows.cuh", "rows.py", "ring.py"), fallbacks=("triton.row",), priority=5,
    ),
    Kernel(
        "cuda.cluster", "softmax", "cuda", "a wide row in the registers of a thread block cluster, read once",
        "kernelyard.plugins.cuda.softmax:cluster", _rows(MOST_COLS, 4096), spaces.SOFTMAX_CLUSTER,
        files=("softmax.cu", "softmax.cuh", "vectors.cuh", "rows.cuh", "rows.py", "ring.py"), fallbacks=("triton.sweep",), priority=4,
    ),
    Kernel(
        "cuda.ring", "softmax", "cuda", "persistent blocks, whole rows by bulk copies into a ring in shared memory",
        "kernelyard.plugins.cuda.softmax:ring", RING, ring.SPACE,
        files=("softmax_ring.cu", "softmax.cuh", "ring.cuh", "vectors.cuh", "rows.cuh", "rows.py", "ring.py"),
        fallbacks=("cuda.row",), priority=3,
    ),
    _staged("rmsnorm", "rmsnorm:staged", staged.NORM, "rmsnorm_staged.cu", "rmsnorm.cuh"),
    # us at 2048x32768: softmax 65.6 (cuda.cluster 70.5, triton.packed 71.8, quack 66.5), add_rmsnorm 130.2 (triton.row 133.2, Liger 131.9).
    _staged("softmax", "softmax:staged", staged.SOFTMAX, "softmax_staged.cu", "softmax.cuh", first=(_measured(32768, 32768),)),
    _staged("add_rmsnorm", "rmsnorm:added", staged.NORM, "rmsnorm_staged.cu", "rmsnorm.cuh", first=(_measured(32768, 32768),)),
    Kernel(
        "cuda.cluster", "rmsnorm_backward", "cuda", "persistent clusters, rows prefetched, dw in registers",
        "kernelyard.plugins.cuda.rmsnorm_backward:cluster",
        Support(("cuda",), DTYPES, most={"cols": MOST_COLS, "rows": MOST_ROWS}, predicates=(two_dimensions, alike)), spaces.BACKWARD,
        files=("rmsnorm_backward.cu", "rows.cuh", "rows.py"), fallbacks=("triton.split",), priority=5,
        determinism=Determinism.RUN_TO_RUN,
        # us of it and the next: 13.0 and 15.1 at 1000x4095, 108.6 and 121 at 2048x32768; 18.4 and 17.2 at 8192x1024, 57.2 and 54.2 at
        # 4096x8192.
        priority_where=tuple((where, 45) for where in (_measured(4095, 4095, odd_width), _measured(16384, 65536))),
    ),
)  # fmt: skip
