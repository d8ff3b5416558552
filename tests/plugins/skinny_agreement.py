"""The kernels for few rows in every way of copying the weight and every height of a tile, compared as agreement.py compares.

In a process of its own, for Triton's interpreter: `python skinny_agreement.py` prints the faults as JSON.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # where this is loaded by its path and not run

import agreement

from kernelyard.registry.kernel import Kernel
from kernelyard.registry.spec import Config, Workload


def some_configs(kernel: Kernel, workload: Workload) -> Iterator[Config]:
    """Of short tiles, so that there are steps, the last of them not whole; none where the kernel does not serve."""
    if not agreement.accepts(kernel, workload):
        return
    for copy in ("plain", "evict_first", "descriptor"):
        for weights in (16, 32, 64, 128):
            config = {**kernel.space.default_for(workload), "block_k": 64, "num_warps": 4, "weights": weights, "copy": copy}
            if kernel.space.allows(config, workload):
                yield config


def faults(kernel: Kernel) -> dict[str, object]:
    """How many configs were compared in each way of copying, and what was wrong, by case and config."""
    compared, found = {"plain": 0, "evict_first": 0, "descriptor": 0}, {}
    for case in agreement.special_cases(agreement.OPS[kernel.op], "cpu"):
        for config in some_configs(kernel, agreement.OPS[kernel.op].workload_of(case[2])):
            compared[str(config["copy"])] += 1
            if text := agreement.fault(kernel, case, config):
                found[f"{case[0]}, {config['copy']}, {config['weights']}"] = text
    return {"compared": compared, "faults": found}


if __name__ == "__main__":
    print(json.dumps({name: faults(kernel) for name, kernel in agreement.kernels().items() if kernel.name == "triton.skinny"}))
