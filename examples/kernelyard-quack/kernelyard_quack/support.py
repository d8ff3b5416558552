"""What quack 0.6.5 computes within kernelyard's contracts, and why not the rest: read off its sources and its compiler's refusals.

Imports nothing of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from kernelyard.registry.kernel import Support
from kernelyard.registry.spec import DTYPE_BYTES, YES, Answer, Workload, no, timed_only

DTYPES = ("float32", "bfloat16", "float16")
MOST_COLS = 65536
"""The widest row that is declared: a round bound for both peers, of which quack alone goes beyond."""

Predicate = Callable[[Workload], Answer]


def one_row_stride(workload: Workload) -> Answer:
    """Whether leading dimensions are one, as its kernels address (rows, cols)."""
    for name, spec in workload.tensors:
        if spec is not None and len(spec.shape) > 2 and spec.numel:
            return no(f"{name} with strides {spec.strides} can't be viewed as (rows, cols)")
    return YES


def whole_words(workload: Workload) -> Answer:
    """cp.async copies 4 bytes at least: an odd number of 16-bit columns does not compile."""
    row = workload.dim("cols") * DTYPE_BYTES[workload.dtype]
    return YES if row % 4 == 0 else no(f"a row of {workload.dim('cols')} {workload.dtype} is {row} bytes, quack needs a multiple of 4")


def whole_vectors(workload: Workload) -> Answer:
    """Its softmax copies 16 bytes at a time and has no tail."""
    row = workload.dim("cols") * DTYPE_BYTES[workload.dtype]
    return YES if row % 16 == 0 else no(f"a row of {workload.dim('cols')} {workload.dtype} is {row} bytes, quack needs a multiple of 16")


def vectors_in_place(workload: Workload) -> Answer:
    """Every address and row stride must be a multiple of the vector that its width allows, which its calling convention checks."""
    widest = max(DTYPE_BYTES[spec.dtype] for _, spec in workload.tensors if spec is not None)
    vector = math.gcd(workload.dim("cols"), 16 // widest)
    for name, spec in workload.tensors:
        if spec is None or not spec.numel or vector == 1:
            continue
        if not spec.aligned:
            return no(f"{name} must start at a multiple of 16 bytes: quack moves {vector} elements at a time")
        if len(spec.shape) > 1 and spec.shape[0] > 1 and spec.strides[0] % vector:
            return no(f"the row stride of {name} is {spec.strides[0]}, quack needs a multiple of {vector}")
    return YES


def weight_no_wider(workload: Workload) -> Answer:
    """A wider weight would have to start at a multiple of 32 bytes, of which a workload knows nothing."""
    if not workload.has("w") or DTYPE_BYTES[workload["w"].dtype] <= DTYPE_BYTES[workload.dtype]:
        return YES
    return no(f"w is {workload['w'].dtype} beside {workload.dtype}: quack's gradient wants it at a multiple of 32 bytes")


def float32_rounding(workload: Workload) -> Answer:
    """It rounds once, at the end."""
    casting = workload.static("casting")
    return YES if casting == "fp32" else no(f"quack has no casting '{casting}': it computes in float32 and rounds once")


def masked_rows(workload: Workload) -> Answer:
    """No workload shows whether a row of it will be masked altogether."""
    return timed_only("a row of all -inf becomes NaN, where the contract has zeros")


def whole_heads(workload: Workload) -> Answer:
    """Its own check."""
    dim = workload.dim("dim")
    return YES if dim % 8 == 0 else no(f"dim is {dim}, quack needs a multiple of 8")


def aligned_heads(workload: Workload) -> Answer:
    """x is read in vectors of 16 bytes; the angles are looked up into memory of their own."""
    return YES if workload["x"].aligned else no("x must start at a multiple of 16 bytes")


def _rows(*predicates: Predicate) -> Support:
    most = {"rows": 2**31 - 1, "cols": MOST_COLS}
    return Support(("cuda",), DTYPES, most=most, least={"cols": 1}, predicates=(one_row_stride, *predicates))


NORM = _rows(whole_words, vectors_in_place, float32_rounding)
# In a gradient a rounding has no derivative: both castings are one formula.
NORM_BACKWARD = _rows(whole_words, vectors_in_place, weight_no_wider)
SOFTMAX = _rows(whole_vectors, vectors_in_place, masked_rows)
SOFTMAX_BACKWARD = _rows(whole_vectors, vectors_in_place)
ROPE = Support(
    ("cuda",),
    DTYPES,
    most={"tokens": 2**20, "heads": 2**16, "dim": 512},
    least={"heads": 1, "dim": 8},
    contiguous=True,
    predicates=(whole_heads, aligned_heads),
)
