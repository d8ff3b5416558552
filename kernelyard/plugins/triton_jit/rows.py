"""What the kernels over rows support: dtypes, and rows with one stride between them."""

from __future__ import annotations

from collections.abc import Callable

from kernelyard.registry.kernel import Support
from kernelyard.registry.spec import YES, Answer, Workload, no

DTYPES = ("float32", "bfloat16", "float16")


def two_dimensions(workload: Workload) -> Answer:
    """Whether leading dimensions are one, with one stride between rows: what a row kernel addresses."""
    for name, spec in workload.tensors:
        if spec is not None and len(spec.shape) > 2 and spec.numel:
            return no(f"{name} with strides {spec.strides} can't be viewed as (rows, cols) with one stride between rows")
    return YES


def rows_support(most_cols: int, *more: Callable[[Workload], Answer]) -> Support:
    """Rows of up to `most_cols` columns, of which `more` may ask more."""
    return Support(("cuda",), DTYPES, most={"cols": most_cols, "rows": 2**31 - 128}, predicates=(two_dimensions, *more))
