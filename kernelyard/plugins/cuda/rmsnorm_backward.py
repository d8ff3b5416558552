"""Entry of the CUDA rmsnorm_backward; the algorithm is told in rmsnorm_backward.cu."""

from __future__ import annotations

import math
from typing import Any

from kernelyard.plugins.cuda.rows import defines, multiprocessors, stride, vector
from kernelyard.registry.backend import NativeSource
from kernelyard.registry.spec import YES, Answer, Config, Workload, no


def alike(workload: Workload) -> Answer:
    """Whether x and dy begin at the same place to 16 bytes in every row: their vectors are then of the same columns."""
    for name in ("dy", "x"):
        if not workload[name].aligned:
            return no(f"{name} must start at a multiple of 16 bytes")
    apart = stride(workload["dy"], workload) - stride(workload["x"], workload)
    if apart % vector(workload):
        return no(f"rows of dy and x begin differently to 16 bytes: their strides are {workload['dy'].strides} and {workload['x'].strides}")
    return YES


def period(workload: Workload) -> int:
    """Rows after which the place where x's begin to 16 bytes repeats."""
    return vector(workload) // math.gcd(vector(workload), stride(workload["x"], workload))


def cluster(workload: Workload, config: Config) -> NativeSource:
    """A persistent grid of clusters, and a second that adds their sums for dw."""
    import torch

    given = {
        **defines(workload, config), "STAGES": int(config["stages"]), "CTAS": int(config["blocks_per_sm"]), "AHEAD": int(config["ahead"]),
        "HAS_WEIGHT": int(workload.has("w")),
    }  # fmt: skip
    rows, cols, again = workload.dim("rows"), workload.dim("cols"), period(workload)
    between = stride(workload["dy"], workload), stride(workload["x"], workload)
    processors = multiprocessors()
    most = max(processors * int(config["blocks_per_sm"]) // int(config["cluster"]), again)
    sums = min(most, rows), cols

    def arguments(outputs: tuple[Any, ...], dy: Any, x: Any, w: Any, eps: float, offset: float, casting: str) -> tuple[Any, ...]:
        if w is None:
            return outputs[0], x, x, dy, x, x, rows, cols, *between, eps, offset, most, processors, again
        partial = torch.empty(sums, dtype=torch.float32, device=x.device)
        return outputs[0], outputs[1], partial, dy, x, w, rows, cols, *between, eps, offset, most, processors, again

    return NativeSource(("rmsnorm_backward.cu",), "rmsnorm_backward", arguments, given)
