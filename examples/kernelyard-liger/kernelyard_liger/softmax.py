"""softmax and its gradient by the functions below Liger's autograd ones; underscored there, and nothing leaner is public."""

from __future__ import annotations

from collections.abc import Callable

from liger_kernel.ops.softmax import _softmax_backward, _softmax_forward
from liger_kernel.ops.utils import calculate_settings
from torch import Tensor

from kernelyard.registry.spec import Config, Workload


def softmax(workload: Workload, config: Config) -> Callable[..., Tensor]:
    """One block a row: kernelyard_liger.support keeps rows within what Liger's other kernel, of several blocks, is for."""

    def call(x: Tensor) -> Tensor:
        y: Tensor = _softmax_forward(x)[0]
        return y

    return call


def softmax_backward(workload: Workload, config: Config) -> Callable[..., Tensor]:
    """With the block that the forward would have used."""
    block, warps = calculate_settings(workload.dim("cols"))

    def call(dy: Tensor, y: Tensor) -> Tensor:
        dx: Tensor = _softmax_backward(dy, y, block, warps, False)
        return dx

    return call
