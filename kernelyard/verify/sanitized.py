"""The process that compute-sanitizer watches: `python -m kernelyard.verify.sanitized OP KERNEL POINTS` builds and launches, no more.

Inputs are made on the CPU and copied, so that the kernel under test is the only one launched: a finding is its own.
"""

from __future__ import annotations

import json
import sys

import torch

from kernelyard.registry import registry
from kernelyard.registry.kernel import Kernel
from kernelyard.registry.matrix import point_from
from kernelyard.registry.op import Op, Point
from kernelyard.verify.sanitizer import LAUNCHED


def main(op_name: str, kernel_name: str, points: str) -> None:
    """Launches the kernel once on each point, in its default config."""
    table = registry.current()
    op, kernel = table.op(op_name), table.kernel(op_name, kernel_name)
    for value in json.loads(points):
        launch(op, kernel, point_from(value))
        print(LAUNCHED, flush=True)


def launch(op: Op, kernel: Kernel, point: Point) -> None:
    """One launch, waited for."""
    workload = op.workload(point, "cuda")
    built = registry.current().build(kernel, workload, kernel.space.default_for(workload))
    made = op.inputs(workload, torch.Generator("cpu").manual_seed(0))
    built.call(*(value.to("cuda") if isinstance(value, torch.Tensor) else value for value in made))
    torch.cuda.synchronize()


if __name__ == "__main__":
    main(*sys.argv[1:])
