"""The plugin as an installed one: found, within its contract, and modest about what it supports.

Values here are a smoke test. `kernelyard check rmsnorm --kernel cpp.example_lanes` has the frozen matrix, the edge values, the
poisoned outputs and the guard regions; `kernelyard check squared_relu` the same for the op of this plugin.
"""

from __future__ import annotations

import pytest
import torch
from kernelyard_example import RMSNORM_LANES, SQUARED_RELU, SQUARED_RELU_CPP

from kernelyard.registry.kernel import Kernel
from kernelyard.registry.op import Op, Point
from kernelyard.registry.registry import current
from kernelyard.registry.spec import Config


def run(op: Op, kernel: Kernel, config: Config, *args: object) -> torch.Tensor:
    bound = op.bind(args, {})
    return current().build(kernel, op.workload_of(bound), config).call(*bound)


def needs(kernel: Kernel) -> None:
    if not (answer := current().can_run(kernel, "cpu")):
        pytest.skip(answer.reason)


def test_the_plugin_is_discovered_whole():
    found = {loaded.plugin.name for loaded in current().plugins}
    assert "example" in found
    assert not [problem for problem in current().problems if problem.plugin == "example"]
    assert current().kernel("rmsnorm", "cpp.example_lanes") is RMSNORM_LANES
    assert [kernel.name for kernel in current().kernels("squared_relu")] == ["cpp.onepass", "torch.eager"]


@pytest.mark.parametrize("lanes", [4, 8, 16, 32])
@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize("shape", [(0, 128), (4, 1), (7, 31), (4, 129), (2, 3, 1000)])
def test_rmsnorm_lanes_agrees_with_the_reference(lanes: int, threads: int, shape: tuple[int, ...]):
    needs(RMSNORM_LANES)
    op = current().op("rmsnorm")
    x, w = torch.randn(shape), torch.randn(shape[-1])
    out = run(op, RMSNORM_LANES, {"threads": threads, "lanes": lanes}, x, w, 1e-6)
    torch.testing.assert_close(out, torch.nn.functional.rms_norm(x, shape[-1:], w, 1e-6))


def test_rmsnorm_lanes_needs_no_weight():
    needs(RMSNORM_LANES)
    x = torch.randn(3, 65)
    out = run(current().op("rmsnorm"), RMSNORM_LANES, {"threads": 1, "lanes": 8}, x)
    torch.testing.assert_close(out, torch.nn.functional.rms_norm(x, (65,), eps=1e-6))


def test_rmsnorm_lanes_gives_the_same_bits_whatever_the_threads():
    needs(RMSNORM_LANES)
    op, x = current().op("rmsnorm"), torch.randn(9, 1000)
    one, four = (run(op, RMSNORM_LANES, {"threads": threads, "lanes": 8}, x) for threads in (1, 4))
    assert torch.equal(one, four)


def test_rmsnorm_lanes_refuses_what_it_was_not_written_for_with_a_reason():
    op = current().op("rmsnorm")
    strided = op.workload(Point((33, 129), "float32", "row_strided"))
    half = op.workload(Point((33, 129), "bfloat16"))
    assert "contiguous" in RMSNORM_LANES.support.fits(strided).reason
    assert "bfloat16" in RMSNORM_LANES.support.fits(half).reason


def test_no_config_has_more_threads_than_rows():
    one_row = current().op("rmsnorm").workload(Point((1, 4096), "float32"))
    assert {config["threads"] for config in RMSNORM_LANES.space.configs(one_row)} == {1}


@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize("n", [0, 1, 31, 4097])
def test_squared_relu_is_one_rounding_from_the_reference(threads: int, n: int):
    needs(SQUARED_RELU_CPP)
    x = torch.randn(n)
    torch.testing.assert_close(run(SQUARED_RELU, SQUARED_RELU_CPP, {"threads": threads}, x), torch.relu(x).square(), rtol=1e-7, atol=0)


def test_squared_relu_propagates_nan_and_infinity():
    needs(SQUARED_RELU_CPP)
    x = torch.tensor([float("nan"), float("-inf"), float("inf"), -0.0, 2.0])
    out = run(SQUARED_RELU, SQUARED_RELU_CPP, {"threads": 1}, x)
    torch.testing.assert_close(out, torch.relu(x).square(), equal_nan=True)


def test_squared_relu_is_an_operator_with_a_gradient():
    import kernelyard

    x = torch.tensor([-1.0, 0.5, 3.0], requires_grad=True)
    kernelyard.ops.squared_relu(x).sum().backward()
    torch.testing.assert_close(x.grad, torch.tensor([0.0, 1.0, 6.0]))
