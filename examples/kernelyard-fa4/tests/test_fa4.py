"""The plugin as an installed one: found whole, and right on the quick matrix where FA4 can run.

`kernelyard check attention --kernel fa4.attention` has the whole matrix.
"""

from __future__ import annotations

import pytest
from kernelyard_fa4 import KERNELS

from kernelyard.registry.kernel import Kernel
from kernelyard.registry.registry import current
from kernelyard.verify.check import check_kernel

names = pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)


def test_the_plugin_is_discovered_whole():
    assert not [problem for problem in current().problems if problem.plugin == "fa4"]
    assert all(current().kernel(kernel.op, kernel.name) is kernel for kernel in KERNELS)


@names
def test_it_is_right_where_it_may_serve(kernel: Kernel):
    if not (answer := current().can_run(kernel, "cuda")):
        pytest.skip(answer.reason)
    op = current().op(kernel.op)
    if not any(kernel.support.fits(op.workload(point, "cuda")) for point in op.matrix("smoke", "cuda").points):
        pytest.skip("it serves no call: it is there to time against")
    report = check_kernel(op, kernel, op.matrix("smoke", "cuda"), "cuda")
    assert report.ok, report.failures
