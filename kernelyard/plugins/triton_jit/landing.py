"""Results that a descriptor can't reach: an address that is no multiple of 16 bytes, as a caller's `out=` may have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from kernelyard.registry.backend import Descriptor

Into = Callable[..., None]
ALIGNED = 16
"""Bytes: the driver refuses a map of an address that is no multiple."""


def landed(arguments: Callable[..., tuple[Any, ...]], go: Callable[[tuple[Any, ...]], object]) -> Into:
    """A call of `go` with the arguments laid out. A result that its descriptor can't reach is written elsewhere and copied."""

    def into(outputs: tuple[torch.Tensor, ...], *args: Any) -> None:
        values = arguments(outputs, *args)
        missed = [value.tensor for value in values if isinstance(value, Descriptor) and value.tensor.data_ptr() % ALIGNED]
        there = tuple(torch.empty_like(output) if any(output is tensor for tensor in missed) else output for output in outputs)
        go(arguments(there, *args) if missed else values)
        for output, landing in zip(outputs, there, strict=True):
            if landing is not output:
                output.copy_(landing)

    return into
