"""swiglu and its gradient by Liger's functions for two tensors and for a packed one.

Liger's gradient of two tensors writes over them, as its autograd function may; here a and b belong to the caller, so it is given
copies: 4 passes more than its own 5. The packed one has a way out of place.
"""

from __future__ import annotations

from collections.abc import Callable

from liger_kernel.ops import swiglu as liger
from torch import Tensor

from kernelyard.registry.spec import Config, Workload


def swiglu(workload: Workload, config: Config) -> Callable[..., Tensor]:
    """silu(a) * b."""
    return _two if workload.has("b") else _packed


def swiglu_backward(workload: Workload, config: Config) -> Callable[..., tuple[Tensor, Tensor]]:
    """(da, db); packed, db is empty."""
    return _two_backward if workload.has("b") else _packed_backward


def _two(a: Tensor, b: Tensor) -> Tensor:
    y: Tensor = liger.swiglu_forward(a, b)[2]
    return y


def _packed(a: Tensor, b: None) -> Tensor:
    y: Tensor = liger.swiglu_fused_gate_up_forward(a)[1]
    return y


def _two_backward(dy: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    da, db = liger.swiglu_backward(a.clone(), b.clone(), dy)
    return da, db


def _packed_backward(dy: Tensor, a: Tensor, b: None) -> tuple[Tensor, Tensor]:
    return liger.swiglu_fused_gate_up_backward(a, dy).view(a.shape), a.new_empty(0)
