"""triton.split of rope_attention_decode in several configs, compared as agreement.py compares; the counters are looked at after each.

In a process of its own, for Triton's interpreter: `python fused_decode_agreement.py` prints the faults as JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # where this is loaded by its path and not run

import agreement
import torch

from kernelyard.plugins.triton_jit import counters
from kernelyard.registry.matrix import Point

KERNEL = agreement.kernels()["rope_attention_decode/triton.split"]
OP = agreement.OPS["rope_attention_decode"]
POINTS = (
    Point((6, 4, 2, 70, 64), "bfloat16"), Point((2, 7, 1, 50, 128), "float16"), Point((3, 24, 1, 40, 80), "bfloat16"),
    Point((6, 4, 2, 70, 64), "float16", "bshd"), Point((3, 4, 2, 9, 6), "float32", "offset"),
)  # fmt: skip
PARTS = (1, 2, 8)
handed: list[torch.Tensor] = []


def kept(count: int, device: torch.device) -> torch.Tensor:
    """Counters that are looked at afterwards."""
    handed.append(torch.zeros(count, dtype=torch.int32, device=device))
    return handed[-1]


def main() -> dict[str, object]:
    """How many were compared, what was wrong, and how many counters were left as something else than zero."""
    counters.zeros = kept
    compared, found = 0, {}
    for point in POINTS:
        work = OP.workload(point, "cpu")
        for parts in PARTS:
            config = {**KERNEL.space.default_for(work), "tokens": 16, "parts": parts}
            if not KERNEL.space.allows(config, work):
                continue
            compared += 1
            case = (work.label(), OP, OP.inputs(work, torch.Generator().manual_seed(0)))
            if text := agreement.fault(KERNEL, case, config):
                found[f"{work.label()} in {parts} parts"] = text
    left = sum(int((one != 0).sum()) for one in handed)
    return {"compared": compared, "faults": found, "counted": len(handed), "left": left}


if __name__ == "__main__":
    print(json.dumps(main()))
