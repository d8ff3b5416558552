"""The form of outputs: number, type, shape, dtype, device, strides, and whose memory they are."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from kernelyard.registry.op import Op
from kernelyard.verify import compare
from kernelyard.verify.outcome import checking


def faults(op: Op, args: tuple[Any, ...], outputs: tuple[Any, ...], earlier: list[Tensor], defences: frozenset[str]) -> list[str]:
    """What is wrong with the form of these outputs. `earlier` are outputs of earlier runs, still alive."""
    found: list[str] = []
    if "form" in defences:
        with checking(f"the outputs that {op.name} declares"):
            expected = op.empty(*args)
        found += _form(expected, outputs)
    tensors = [output for output in outputs if isinstance(output, Tensor)]
    if "alias" in defences:
        found += _alias(op, args, tensors, earlier)
    return found


def _form(expected: tuple[Tensor, ...], outputs: tuple[Any, ...]) -> list[str]:
    if len(outputs) != len(expected):
        return [f"returned {len(outputs)} outputs, not {len(expected)}"]
    found = []
    for output, right in zip(outputs, expected, strict=True):
        if type(output) is not Tensor:
            found.append(f"returned a {type(output).__name__}, not a plain Tensor")
            continue
        for name, got, want in (
            ("shape", tuple(output.shape), tuple(right.shape)),
            ("dtype", output.dtype, right.dtype),
            ("device", output.device, right.device),
            ("strides", _strides(output), _strides(right)),
        ):
            if got != want:
                found.append(f"wrong {name}: {got}, not {want}")
    return found


def _strides(tensor: Tensor) -> tuple[int, ...]:
    """Those that matter: the stride of a dimension of size 1, and any of an empty tensor, does not."""
    if tensor.numel() == 0:
        return ()
    return tuple(stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size != 1)


def _alias(op: Op, args: tuple[Any, ...], outputs: list[Tensor], earlier: list[Tensor]) -> list[str]:
    owners = {_storage(value): f"input {a.name}" for a, value in zip(op.arguments, args, strict=True) if isinstance(value, Tensor)}
    owners |= {_storage(tensor): "the result of an earlier call, which it overwrote" for tensor in earlier if tensor.numel()}
    found = []
    for i, output in enumerate(outputs):
        if output.numel() and (owner := owners.get(_storage(output))):
            found.append(f"output {i} shares memory with {owner}: aliased")
        owners[_storage(output)] = f"output {i}"
    return found


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def same_bits(one: Tensor, other: Tensor) -> bool:
    """Whether both hold the same bits, NaNs and signs of zero included."""
    return one.shape == other.shape and one.dtype == other.dtype and compare.first_difference(bits(one), bits(other)) < 0


def bits(tensor: Tensor) -> Tensor:
    """The elements as integers."""
    kind = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
    return tensor.detach().contiguous().view(kind)
