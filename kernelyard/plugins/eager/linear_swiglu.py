"""linear_swiglu by one product with both layers' weights, then swiglu in float32, rounded once; see `matmul`.

`plain` is what models have: a linear layer, silu and a product, each rounded. It is there to be timed against.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor
from torch.nn import functional as F

from kernelyard.plugins.eager.matmul import wide_product
from kernelyard.registry.spec import Config, Workload

LinearSwiglu = Callable[[Tensor, Tensor], Tensor]


def eager(workload: Workload, config: Config) -> LinearSwiglu:
    """The formula, for every workload."""
    return _linear_swiglu


def plain(workload: Workload, config: Config) -> LinearSwiglu:
    """What is written in models."""
    return _rounded_often


def _linear_swiglu(x: Tensor, w: Tensor) -> Tensor:
    gate, up = wide_product(x, w.mT).chunk(2, -1)
    return (F.silu(gate) * up).to(x.dtype)


def _rounded_often(x: Tensor, w: Tensor) -> Tensor:
    gate, up = F.linear(x, w).chunk(2, -1)
    return F.silu(gate) * up
