"""The declarations of the C++ kernels for linear layers of few rows: what they take, and what is tuned."""

from __future__ import annotations

from kernelyard.plugins.cpp.spaces import BYTES_A_THREAD, THREADS, processors
from kernelyard.registry.kernel import Kernel, Support
from kernelyard.registry.space import ConfigSpace, Constraint, Parameter
from kernelyard.registry.spec import YES, Answer, Config, Workload, no

DTYPES = ("float32", "bfloat16", "float16")
HEADERS = ("linear.h", "activation.h", "exponential.h", "sweeps.h", "rows.h", "simd.h")
MOST_ROWS = 16
BLOCK = 64
"""Rows of the weight that a thread takes at once."""
STREAMS = Parameter(
    "streams", (2, 4, 8), "rows of the weight read side by side: 8 chains hide an FMA for one row of x; 4 by 4 rows of x load least"
)


def _weight(workload: Workload) -> str:
    return "b" if workload.op == "matmul" else "w"


def _few_threads(config: Config, workload: Workload) -> bool:
    return int(config["threads"]) <= max(workload.dim("n") // BLOCK, 1)


def _defaults(workload: Workload) -> Config:
    rows = workload.dim("m" if workload.op == "matmul" else "rows")
    most = min(processors(), workload[_weight(workload)].nbytes // BYTES_A_THREAD, workload.dim("n") // BLOCK, 64)
    return {"threads": 1 << max(most, 1).bit_length() - 1, "streams": 8 if rows <= 2 else 4}


SPACE = ConfigSpace(
    (THREADS, STREAMS),
    (
        Constraint(lambda c, w: int(c["threads"]) <= processors(), "more threads than this process has CPUs"),
        Constraint(_few_threads, f"more threads than blocks of {BLOCK} rows of the weight"),
    ),
    _defaults,
)


def linear_layout(workload: Workload) -> Answer:
    """A row-major, b the transpose of a weight (n, k) with rows without gaps: what a linear layer has."""
    a, b = workload["a"], workload["b"]
    if len(b.shape) != 2:
        return no("b has leading dimensions")
    if workload.dim("k") > 1 and workload.dim("n") and b.strides[0] != 1:
        return no(f"b must be the transpose of a weight (n, k) with contiguous rows, its strides are {b.strides}")
    if a.numel and a.shape[-1] > 1 and a.strides[-1] != 1:
        return no(f"rows of a must be contiguous, its strides are {a.strides}")
    for name in ("bias", "residual"):
        if workload.has(name) and workload[name].numel and workload[name].shape[-1] > 1 and workload[name].strides[-1] != 1:
            return no(f"rows of {name} must be contiguous, its strides are {workload[name].strides}")
    return YES


LINEAR = Kernel(
    name="cpp.rows",
    op="matmul",
    backend="cpp",
    summary="up to 16 rows against a linear layer's weight, which is read once",
    entry="kernelyard.plugins.cpp.linear:rows",
    support=Support(("cpu",), DTYPES, most={"m": MOST_ROWS}, unit_last_stride=False, predicates=(linear_layout,)),
    space=SPACE,
    files=("vector_add.py", "linear.cpp", *HEADERS),
    fallbacks=("torch.eager",),
    priority=10,
)

LINEAR_SWIGLU = Kernel(
    name="cpp.rows",
    op="linear_swiglu",
    backend="cpp",
    summary="up to 16 rows against both layers' weights, which are read once",
    entry="kernelyard.plugins.cpp.linear:gated",
    support=Support(("cpu",), DTYPES, most={"rows": MOST_ROWS}),
    space=SPACE,
    files=("vector_add.py", "linear.cpp", *HEADERS),
    fallbacks=("torch.eager",),
    priority=10,
)
