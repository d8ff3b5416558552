"""What serves an op in a swapped layer, and what is worked out once for a tensor that all layers of a pass share."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn

from kernelyard.registry import registry
from kernelyard.registry.operator import operator
from kernelyard.registry.pins import use

Serve = Callable[..., Any]
Value = TypeVar("Value")

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
"""Of the ops that are swapped."""


def serving(op: str, kernel: str | None) -> Serve:
    """The operator, or the operator with a kernel pinned.

    torch.compile would trace a pin away, since a compiled call chooses its kernel when it runs: a pinned op is left out of the graph.
    """
    found = operator(op)
    if kernel is None:
        return found
    pin: Any = {op: kernel}

    def pinned(*args: Any, **kwargs: Any) -> Any:
        with use(**pin):
            return found(*args, **kwargs)

    uncompiled: Serve = torch.compiler.disable(pinned)  # type: ignore[no-untyped-call]

    def serve(*args: Any, **kwargs: Any) -> Any:
        return uncompiled(*args, **kwargs) if torch.compiler.is_compiling() else pinned(*args, **kwargs)

    return serve


class OfLast(Generic[Value]):
    """A function of tensors that remembers its last result: the layers of a pass all get the same mask and rotary tables.

    Asked again for the very same tensors, unwritten since (torch counts writes; of inference tensors it does not, so nothing is kept),
    it gives the result it had. What was worked out outside of a CUDA graph's capture is not used inside: a replay would not work it
    out again.
    """

    def __init__(self, compute: Callable[..., Value]) -> None:
        self._compute = compute
        self._kept: tuple[tuple[weakref.ref[Tensor], ...], Hashable, Value] | None = None

    def __call__(self, tensors: tuple[Tensor, ...], *rest: Hashable) -> Value:
        """The function of the tensors and of the rest."""
        if torch.compiler.is_compiling() or any(tensor.is_inference() for tensor in tensors):
            return self._compute(*tensors, *rest)
        key = (tuple(tensor._version for tensor in tensors), rest, capturing(tensors[0]))
        kept = self._kept
        if kept is not None and kept[1] == key and all(one() is other for one, other in zip(kept[0], tensors, strict=True)):
            return kept[2]
        value = self._compute(*tensors, *rest)
        self._kept = tuple(weakref.ref(tensor) for tensor in tensors), key, value
        return value


def capturing(tensor: Tensor) -> bool:
    """Whether work on this tensor is being captured as a CUDA graph."""
    return tensor.is_cuda and torch.cuda.is_current_stream_capturing()


def hooked(module: nn.Module) -> bool:
    """Whether somebody waits for this module to be called: to compute without calling it would leave him out."""
    own = module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks
    return bool(own) or bool(nn.modules.module._has_any_global_hook())  # type: ignore[no-untyped-call]


def served_on(op: str) -> frozenset[str]:
    """Device types on which this machine has a kernel of the op that is not there for want of any other."""
    table = registry.current()
    kernels = [kernel for kernel in table.kernels(op) if kernel.priority >= 0 and kernel.name != table.op(op).fallback]
    return frozenset(device for device in ("cpu", "cuda") if any(table.can_run(kernel, device) for kernel in kernels))
