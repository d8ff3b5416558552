"""add_rmsnorm_backward in Triton: dx = rmsnorm_backward(dy, r) + dr in one kernel and one rounding; the kernels of `norm_gradient`.

Bytes: dy, r, dr once (dr may be absent), dx once.
"""

from __future__ import annotations

from torch import Tensor

from kernelyard.plugins.triton_jit import norm_gradient_launch
from kernelyard.plugins.triton_jit.norm_gradient_launch import Given
from kernelyard.registry.backend import TritonLaunch
from kernelyard.registry.spec import Config, Workload


def _given(dy: Tensor, dr: Tensor | None, r: Tensor, w: Tensor | None, eps: float, offset: float, casting: str) -> Given:
    return dy, r, dr, w, eps, offset


def persistent(workload: Workload, config: Config) -> TritonLaunch:
    """A fixed grid walks over whole rows."""
    return norm_gradient_launch.persistent(workload, config, "r", _given)


def split(workload: Workload, config: Config) -> TritonLaunch:
    """Two sums a row, then blocks of columns."""
    return norm_gradient_launch.split(workload, config, "r", _given)


def shifted(workload: Workload, config: Config) -> TritonLaunch:
    """Rows that start anywhere, those of one misalignment by one program."""
    return norm_gradient_launch.shifted(workload, config, "r", _given)
