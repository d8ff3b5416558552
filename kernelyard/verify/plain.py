"""Plain values, such as a person would write down: what a failure is shrunk to, and how a script makes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Generator, Tensor

from kernelyard.registry.op import Op
from kernelyard.registry.spec import Workload

KINDS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "zeros": torch.zeros_like,
    "ones": torch.ones_like,
    "arange": lambda x: torch.arange(x.numel(), device=x.device).reshape(x.shape),
}
"""Simplest first. 'arange' counts the elements from 0, row by row."""
OWN = "own"
"""The values that the op's input maker gives."""


def with_values(op: Op, values: Mapping[str, str], seed: int) -> Op:
    """The op, its inputs of this seed plain for the tensors named; those of other seeds stay, because runs with other data need them."""
    named = {name: kind for name, kind in values.items() if kind != OWN}
    if not named:
        return op

    def inputs(workload: Workload, generator: Generator) -> tuple[Any, ...]:
        args = op.inputs(workload, generator)
        if generator.initial_seed() == seed:
            for argument, value in zip(op.arguments, args, strict=True):
                if argument.name in named and isinstance(value, Tensor):
                    put(value, named[argument.name])
        return args

    return replace(op, inputs=inputs)


def put(tensor: Tensor, kind: str) -> None:
    """Overwrites a tensor; rows that a stride of 0 repeats are written once."""
    once = tensor[tuple(slice(0, 1) if stride == 0 else slice(None) for stride in tensor.stride())]
    once.copy_(KINDS[kind](once))
