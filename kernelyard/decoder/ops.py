"""Who serves the model's ops: the registry, plain torch (what torch.compile gets to fuse), or either with a tap on it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from kernelyard.errors import UnknownName


@dataclass(frozen=True)
class OpTable:
    """The ops that a decoder calls, under the names and signatures that the registry has for them.

    rmsnorm(x, w, eps)      x (..., hidden), w (hidden,)
    softmax(x)              over the last dimension
    vector_add(a, b)        equal shapes
    """

    rmsnorm: Callable[[Tensor, Tensor, float], Tensor]
    softmax: Callable[[Tensor], Tensor]
    vector_add: Callable[[Tensor, Tensor], Tensor]

    def tapped(self, tap: Callable[[str, Callable[..., Any]], Callable[..., Any]]) -> OpTable:
        """The same table with each op wrapped: `tap(name, function)` returns what is called instead."""
        return OpTable(**{name: tap(name, getattr(self, name)) for name in NAMES})


NAMES: tuple[str, ...] = tuple(field.name for field in fields(OpTable))
"""Every op of the model that the registry serves."""


def registered() -> OpTable:
    """The registry's operators: what `kernelyard.use` and stored choices act on."""
    from kernelyard import ops

    return OpTable(rmsnorm=ops.rmsnorm, softmax=ops.softmax, vector_add=ops.vector_add)


def _rms_norm(x: Tensor, w: Tensor, eps: float) -> Tensor:
    return F.rms_norm(x, w.shape, w, eps)


def _softmax(x: Tensor) -> Tensor:
    return torch.softmax(x, -1)


PLAIN = OpTable(rmsnorm=_rms_norm, softmax=_softmax, vector_add=torch.add)
"""The ops as torch writes them: a compiler sees through these, and would not through a registered operator."""


def swapped(names: tuple[str, ...]) -> OpTable:
    """These ops by the registry, the others as torch writes them."""
    table = registered()
    return replace(PLAIN, **{name: getattr(table, name) for name in names})


def check_names(names: tuple[str, ...] | None) -> tuple[str, ...]:
    """The ops to swap, in the model's order: all where None is given; raises UnknownName."""
    for name in names or ():
        if name not in NAMES:
            raise UnknownName("op of the decoder", name, NAMES)
    return NAMES if names is None else tuple(name for name in NAMES if name in names)
