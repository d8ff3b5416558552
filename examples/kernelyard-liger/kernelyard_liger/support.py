"""What Liger 0.8.5 computes within kernelyard's contracts, and why not the rest: read off its sources. Imports nothing of it."""

from __future__ import annotations

from collections.abc import Callable

from kernelyard.registry.kernel import Support
from kernelyard.registry.spec import YES, Answer, Workload, no, timed_only

DTYPES = ("float32", "bfloat16", "float16")
HALF = ("bfloat16", "float16")
MOST_COLS = 65536
"""Liger raises beyond: it holds a row in one program."""

Predicate = Callable[[Workload], Answer]


def one_row_stride(workload: Workload) -> Answer:
    """Whether leading dimensions are one, as Liger's `view(-1, cols)` needs."""
    for name, spec in workload.tensors:
        if spec is not None and len(spec.shape) > 2 and spec.numel:
            return no(f"{name} with strides {spec.strides} can't be viewed as (rows, cols)")
    return YES


def has(name: str) -> Predicate:
    """Liger's function has no case without this tensor."""

    def given(workload: Workload) -> Answer:
        return YES if workload.has(name) else no(f"Liger's function needs {name}, which is absent")

    return given


def breaks(why: str, dtypes: tuple[str, ...] = DTYPES) -> Predicate:
    """What Liger computes otherwise than the contract, in these dtypes."""

    def breaks_the_contract(workload: Workload) -> Answer:
        return timed_only(why) if workload.dtype in dtypes else YES

    return breaks_the_contract


def half_style(workload: Workload) -> Answer:
    """The rotation of Hugging Face's Llama is the only one."""
    style = workload.static("style")
    return YES if style == "half" else no(f"Liger pairs (i, i + dim / 2); style is '{style}'")


def float32_angles(workload: Workload) -> Answer:
    """It rotates in the dtype of cos and sin."""
    dtype = workload["cos"].dtype
    return YES if dtype == "float32" else no(f"Liger rotates in the dtype of cos, {dtype}; the contract does in float32")


def _rows(*predicates: Predicate, unit_last_stride: bool = True, contiguous: bool = False) -> Support:
    most = {"rows": 2**31 - 1, "cols": MOST_COLS}
    return Support(
        ("cuda",), DTYPES, most=most, least={"cols": 1}, unit_last_stride=unit_last_stride, contiguous=contiguous, predicates=predicates
    )


NORM = _rows(one_row_stride)
ADD_NORM = _rows(one_row_stride, has("w"))
ADD_NORM_BACKWARD = _rows(one_row_stride, has("w"), has("dr"))
# Liger copies what is not contiguous.
SOFTMAX = _rows(breaks("a row of all -inf becomes NaN, where the contract has zeros"), unit_last_stride=False)
SOFTMAX_BACKWARD = _rows(
    breaks("products dy * y are rounded to 16 bits before they are summed, the contract sums in float32", HALF),
    unit_last_stride=False,
)
SWIGLU = _rows(breaks("silu(a) is rounded to 16 bits before the product, the contract rounds once", HALF), contiguous=True)
SWIGLU_BACKWARD = _rows(contiguous=True)
ROPE = Support(
    ("cuda",),
    DTYPES,
    most={"tokens": 2**31 - 1, "heads": 128, "dim": 256},  # a program holds all heads of a token in registers
    least={"heads": 1, "dim": 2},
    unit_last_stride=False,
    predicates=(half_style, float32_angles),
)
