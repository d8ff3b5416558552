"""softmax and its gradient by the functions that quack's public ones allocate for and then call."""

from __future__ import annotations

from quack.softmax import _softmax_backward, _softmax_fwd
from torch import Tensor

from kernelyard.registry.spec import Config, Workload
from kernelyard_quack.build import Into


def softmax(workload: Workload, config: Config) -> Into:
    """A row is read once, whatever its width."""
    cols = workload.dim("cols")

    def into(outputs: tuple[Tensor], x: Tensor) -> None:
        _softmax_fwd(x.view(-1, cols), outputs[0].view(-1, cols))

    return into


def softmax_backward(workload: Workload, config: Config) -> Into:
    """From the result of the forward."""
    cols = workload.dim("cols")

    def into(outputs: tuple[Tensor], dy: Tensor, y: Tensor) -> None:
        _softmax_backward(dy.view(-1, cols), y.view(-1, cols), outputs[0].view(-1, cols))

    return into
