"""Tensors that a caller gives for the results: `kernelyard.ops.rmsnorm(x, w, out=y)`. What they must be, said by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from kernelyard.errors import InvalidInput
from kernelyard.registry.op import Op
from kernelyard.registry.recall import extent


def as_tuple(op: Op, out: Any) -> tuple[torch.Tensor, ...]:
    """`out` as one tensor for each result; raises InvalidInput."""
    outs = tuple(out) if isinstance(out, tuple | list) else (out,)
    wrong = next((one for one in outs if not isinstance(one, torch.Tensor)), None)
    if wrong is not None or len(outs) != op.returns:
        given = f"holds {type(wrong).__name__}" if wrong is not None else f"holds {len(outs)} tensor(s)"
        wanted = "one tensor" if op.returns == 1 else f"a tuple of {op.returns} tensors"
        raise InvalidInput(f"{op.name}: out {given}.", do=f"Give {wanted}.")
    return outs


def check(op: Op, args: Sequence[Any], outs: Sequence[torch.Tensor]) -> None:
    """Raise InvalidInput unless the results of a call (its arguments are checked already) can be written there."""
    expected = op.empty(*(value.to("meta") if isinstance(value, torch.Tensor) else value for value in args))
    inputs = {a.name: value for a, value in zip(op.arguments, args, strict=True) if isinstance(value, torch.Tensor)}
    device = next(iter(inputs.values())).device
    for place, (out, wanted) in enumerate(zip(outs, expected, strict=True)):
        name = "out" if op.returns == 1 else f"out[{place}]"
        _form(op, name, out, wanted, device)
        for other, tensor in inputs.items():
            if _overlap(out, tensor) and not ((place, other) in op.in_place and _same_place(out, tensor)):
                do = f"Only these may be the very same tensor: {_allowed(op)}." if op.in_place else "Give it memory of its own."
                raise InvalidInput(f"{op.name}: {name} overlaps {other}.", do=do)
        if any(_overlap(out, other) for other in outs[:place]):
            raise InvalidInput(f"{op.name}: two results overlap.", do="Give each memory of its own.")


def _form(op: Op, name: str, out: torch.Tensor, wanted: torch.Tensor, device: torch.device) -> None:
    given, expected = (tuple(out.shape), out.dtype, out.device), (tuple(wanted.shape), wanted.dtype, device)
    for what, got, needed in zip(("shape", "dtype", "device"), given, expected, strict=True):
        if got != needed:
            raise InvalidInput(f"{op.name}: {name} has {what} {got}.", do=f"Give {what} {needed}.")
    if not out.is_contiguous():
        raise InvalidInput(f"{op.name}: {name} has strides {out.stride()}.", do="Give it contiguous.")


def refuse_gradients(op: Op, args: Sequence[Any], outs: Sequence[torch.Tensor]) -> None:
    """Writing into a given tensor has no derivative, as in torch."""
    if torch.is_grad_enabled() and any(isinstance(t, torch.Tensor) and t.requires_grad for t in (*args, *outs)):
        raise InvalidInput(f"{op.name}: out= has no gradient.", do="Call it without out=, or under torch.no_grad().")


def _overlap(a: torch.Tensor, b: torch.Tensor) -> bool:
    if a.device != b.device or not a.numel() or not b.numel():
        return False
    return a.data_ptr() < b.data_ptr() + extent(b) and b.data_ptr() < a.data_ptr() + extent(a)


def _same_place(out: torch.Tensor, tensor: torch.Tensor) -> bool:
    """Whether every element of one lies where the same element of the other does."""
    return out.data_ptr() == tensor.data_ptr() and out.shape == tensor.shape and out.dtype == tensor.dtype and tensor.is_contiguous()


def _allowed(op: Op) -> str:
    return ", ".join(f"{'out' if op.returns == 1 else f'out[{place}]'} and {name}" for place, name in op.in_place)
