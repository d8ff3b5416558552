"""The declarations of the CUDA products of few rows: what they take, and what is tuned."""

from __future__ import annotations

from kernelyard.plugins.cuda.rows import H200_MULTIPROCESSORS
from kernelyard.plugins.cuda.spaces import OVERLAP
from kernelyard.registry.kernel import Kernel, Support
from kernelyard.registry.space import ConfigSpace, Constraint, Parameter
from kernelyard.registry.spec import YES, Answer, Config, Determinism, TensorSpec, Workload, no

ROWS = 16
"""Of x: two tensor core products wide."""
WEIGHTS = 16
PIECE = 8
MOST_LOADS = 16
"""Of 16 bytes of the weight a thread, 64 registers: with as many of x's more would leave a multiprocessor too few threads."""


def linear_weight(workload: Workload) -> Answer:
    """b the transpose of a weight, no batch, whole vectors of 16 bytes."""
    a, b = workload["a"], workload["b"]
    if len(b.shape) != 2 or len(a.shape) != 2 or (workload.has("residual") and len(workload["residual"].shape) != 2):
        return no("there are leading dimensions that are not merged")
    if workload.dim("k") > 1 and (b.strides[0] != 1 or a.strides[-1] != 1):
        return no(f"a and the transpose of b must have contiguous rows, their strides are {a.strides} and {b.strides}")
    return _whole_vectors(workload, a, b, b.strides[1] if b.shape[1] > 1 else 0)


def gated_weight(workload: Workload) -> Answer:
    """Whole vectors of 16 bytes."""
    x, w = workload["x"], workload["w"]
    if len(x.shape) != 2:
        return no(f"the leading dimensions of x can't be seen as one, its strides are {x.strides}")
    if workload.dim("k") > 1 and (x.strides[-1] != 1 or w.strides[-1] != 1):
        return no(f"x and w must have contiguous rows, their strides are {x.strides} and {w.strides}")
    return _whole_vectors(workload, x, w, w.strides[0])


def _whole_vectors(workload: Workload, x: TensorSpec, w: TensorSpec, w_row: int) -> Answer:
    x_row = x.strides[-2] if x.shape[-2] > 1 else 0
    if workload.dim("k") % PIECE or x_row % PIECE or w_row % PIECE or not (x.aligned and w.aligned):
        return no(f"rows must start at multiples of 16 bytes and k be one of {PIECE}: strides {x.strides} and {w.strides}")
    return YES


def _layers(workload: Workload) -> int:
    return 2 if workload.op == "linear_swiglu" else 1


def _few_loads(config: Config, workload: Workload) -> bool:
    return 2 * _layers(workload) * int(config["unroll"]) <= MOST_LOADS


def _all_busy(config: Config, workload: Workload) -> bool:
    return config["warps"] == 2 or 16 * int(config["warps"]) * int(config["unroll"]) < max(workload.dim("k"), 1)


def _default(workload: Workload) -> Config:
    """Where CTAs are fewer than two a multiprocessor 16 loads a thread and up to 16 warps, else 8 loads and 8 warps."""
    few = workload.dim("n") < 2 * WEIGHTS * H200_MULTIPROCESSORS
    for warps, unroll in ((16, 8), (8, 8), (8, 4), (4, 4)) if few else ((8, 4), (4, 4)):
        config: Config = {"warps": warps, "unroll": unroll // _layers(workload), "hint": "none", "overlap": True}
        if 32 * warps * unroll <= workload.dim("k"):
            return config
    return {"warps": 2, "unroll": 2, "hint": "none", "overlap": True}


SPACE = ConfigSpace(
    (
        Parameter("warps", (2, 4, 8, 16), "share k: more for few CTAs, which are n / 16"),
        Parameter("unroll", (1, 2, 4, 8), "times 2 loads of 16 bytes a thread on their way, KiB a warp: 25 KB and more a multiprocessor"),
        Parameter("hint", ("none", "load"), "whether the weight, which is read once, may push others out of L2"),
        OVERLAP,
    ),
    (
        Constraint(_few_loads, f"a thread would hold over {MOST_LOADS} vectors of the weight"),
        Constraint(_all_busy, "over half of the warps would have no terms"),
    ),
    _default,
)


def _kernel(op: str, entry: str, rows: str, fits: object, summary: str) -> Kernel:
    return Kernel(
        name="cuda.gemv", op=op, backend="cuda", summary=summary, entry=f"kernelyard.plugins.cuda.gemv:{entry}",
        support=Support(("cuda",), ("bfloat16", "float16"), most={rows: ROWS}, unit_last_stride=False, predicates=(fits,)),  # type: ignore[arg-type]
        space=SPACE, files=("gemv.cu", "rows.cuh", "rows.py"), fallbacks=("triton.gemv",), priority=-5, determinism=Determinism.RUN_TO_RUN,
    )  # fmt: skip


KERNELS = (
    _kernel("matmul", "linear", "m", linear_weight, "up to 16 rows against a linear layer's weight, by tensor cores"),
    _kernel("linear_swiglu", "gated", "rows", gated_weight, "up to 16 rows against both layers' weights, by tensor cores"),
)
