"""A run on a side CUDA stream that is busy: a kernel launched on any other stream overtakes its own inputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch

from kernelyard.verify import guards
from kernelyard.verify.inputs import Inputs
from kernelyard.verify.outcome import Fault

BUSY_CYCLES = 20_000_000
"""About 10 ms at 1.98 GHz: launches of Python code queue up behind it."""

T = TypeVar("T")


def run_behind(inputs: Inputs, launch: Callable[[Inputs], T]) -> T:
    """Launches on a side stream on which the inputs' values arrive 10 ms later; until then they are NaN.

    The side stream alone is waited for: what the kernel put elsewhere may not be there yet.
    """
    values = {name: region.span().clone() for name, region in inputs.regions.items()}
    for region in inputs.regions.values():
        guards.poison_span(region)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    with torch.cuda.stream(stream):
        torch.cuda._sleep(BUSY_CYCLES)  # type: ignore[no-untyped-call]
        for name, region in inputs.regions.items():
            region.span().copy_(values[name])
        result = launch(inputs)
        current = torch.cuda.current_stream()
    stream.synchronize()
    if current != stream:
        raise Fault("left another CUDA stream current than it found")
    return result
