"""rmsnorm_backward in Triton: the kernels of `norm_gradient`, where algorithm, bytes and what lost are told."""

from __future__ import annotations

from torch import Tensor

from kernelyard.plugins.triton_jit import norm_gradient_launch
from kernelyard.plugins.triton_jit.norm_gradient_launch import Given
from kernelyard.registry.backend import TritonLaunch
from kernelyard.registry.spec import Config, Workload


def _given(dy: Tensor, x: Tensor, w: Tensor | None, eps: float, offset: float, casting: str) -> Given:
    return dy, x, None, w, eps, offset


def persistent(workload: Workload, config: Config) -> TritonLaunch:
    """A fixed grid walks over whole rows."""
    return norm_gradient_launch.persistent(workload, config, "x", _given)


def split(workload: Workload, config: Config) -> TritonLaunch:
    """Two sums a row, then blocks of columns."""
    return norm_gradient_launch.split(workload, config, "x", _given)


def shifted(workload: Workload, config: Config) -> TritonLaunch:
    """Rows that start anywhere, those of one misalignment by one program."""
    return norm_gradient_launch.shifted(workload, config, "x", _given)
