"""The kernels of rmsnorm_linear and rmsnorm_linear_swiglu in several configs, compared as agreement.py compares.

In a process of its own, for Triton's interpreter: `python normed_agreement.py` prints the faults as JSON.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # where this is loaded by its path and not run

import agreement
import torch

from kernelyard.registry.kernel import Kernel
from kernelyard.registry.spec import Config, Workload

Args = tuple[object, ...]
CHANGES: dict[str, tuple[dict[str, object], ...]] = {
    "triton.gemv": tuple({"weights": w, "chunk": c, "num_warps": 4} for w in (1, 4) for c in (512, 1024)),
    "triton.skinny": tuple({"weights": w, "block_k": 64, "num_stages": 2, "norm": n} for w in (16, 64) for n in ("first", "after")),
}


def cases(op: str) -> Iterator[tuple[str, Args]]:
    """Rows of several kinds: k in one chunk and in two, none of them whole; rows apart; a bias."""
    half, brain = torch.float16, torch.bfloat16
    for rows, k, gap, dtype in ((1, 700, 0, brain), (3, 1000, 8, half), (16, 200, 24, brain), (9, 72, 0, half)):
        x = torch.randn(rows, k + gap).to(dtype)[:, :k]
        norm, w = (1 + 0.3 * torch.randn(k)).to(dtype), (torch.randn(66, k + gap) * k**-0.5).to(dtype)[:, :k]
        bias = (torch.randn(66).to(dtype) if rows > 2 else None,) if op == "rmsnorm_linear" else ()
        yield f"{rows} rows of {k}, {dtype}", (x, norm, w, *bias, 0.1, rows % 2 == 1)


def some_configs(kernel: Kernel, workload: Workload) -> Iterator[Config]:
    """The author's and those of CHANGES that the space allows; none where the kernel does not serve."""
    if not agreement.accepts(kernel, workload):
        return
    default = kernel.space.default_for(workload)
    yield default
    for change in CHANGES[kernel.name]:
        config = {**default, **change}
        if config != default and kernel.space.allows(config, workload):
            yield config


def faults(kernel: Kernel) -> dict[str, object]:
    """How many configs were compared, and what was wrong, by case and config, and on every third point of the smoke matrix."""
    compared, found, op = 0, {}, agreement.OPS[kernel.op]
    for name, args in cases(kernel.op):
        for config in some_configs(kernel, op.workload_of(args)):
            compared += 1
            if text := agreement.fault(kernel, (name, op, args), config):
                found[f"{name}, {dict(config)}"] = text
    return {"compared": compared, "faults": found | dict(agreement.faults(kernel, "smoke", "cpu", 3)["faults"])}


if __name__ == "__main__":
    mine = {name: kernel for name, kernel in agreement.kernels().items() if kernel.op.startswith("rmsnorm_linear")}
    print(json.dumps({name: faults(kernel) for name, kernel in mine.items() if kernel.backend == "triton"}))
