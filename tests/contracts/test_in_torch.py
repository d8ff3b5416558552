"""Every op as torch's own: opcheck, whole graphs with gradients and sizes that change, one message whoever calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import kernelyard
from kernelyard import ops
from kernelyard.contracts import plugin
from kernelyard.registry.op import Op
from tests.contracts.cases import outputs, plain_torch, typical

FORWARD = {op.name: op for op in plugin.ops if op.gradient is not None}
DIFFERENTIABLE = {"vector_add": 2, "softmax": 1, "rmsnorm": 2, "add_rmsnorm": 3, "swiglu": 2, "rope": 1, "matmul": 2, "linear_swiglu": 2,
                  "rmsnorm_linear": 3, "rmsnorm_linear_swiglu": 3}  # fmt: skip
"""How many of the first tensors have a gradient."""


@pytest.fixture(autouse=True)
def _plain_torch() -> Iterator[None]:
    torch._dynamo.reset()
    with plain_torch():
        yield


def given(op: Op, rows: int = 3, cols: int = 8, gradients: bool = False) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments and keyword arguments of a call."""
    args, left = list(typical(op, rows, cols)), DIFFERENTIABLE.get(op.name, 0) if gradients else 0
    for i, value in enumerate(args):
        if isinstance(value, torch.Tensor) and left:
            args[i], left = value.requires_grad_(), left - 1
    positional = sum(not argument.keyword_only for argument in op.arguments)
    names = [argument.name for argument in op.arguments[positional:]]
    return tuple(args[:positional]), dict(zip(names, args[positional:], strict=True))


@pytest.mark.parametrize("op", plugin.ops, ids=lambda op: op.name)
def test_opcheck_finds_nothing(op: Op) -> None:
    function = getattr(ops, op.name)
    rows = 1 if op.mutated else 3  # opcheck takes two NaN for different, and a sequence without room has them
    args, more = given(op, rows, gradients=op.gradient is not None)
    assert isinstance(outputs(function(*args, **more))[0], torch.Tensor)  # which registers it
    found = torch.library.opcheck(getattr(torch.ops.kernelyard, op.name), args, more)
    assert set(found.values()) == {"SUCCESS"}


@pytest.mark.parametrize("name", ["swiglu", "rmsnorm", "add_rmsnorm_backward"])
def test_opcheck_finds_nothing_where_an_optional_tensor_is_not_given(name: str) -> None:
    x = torch.randn(3, 8, requires_grad=not name.endswith("_backward"))
    args = {"swiglu": (x,), "rmsnorm": (x, None), "add_rmsnorm_backward": (x, None, x + 1, None)}[name]
    getattr(ops, name)(*args)
    assert set(torch.library.opcheck(getattr(torch.ops.kernelyard, name), args).values()) == {"SUCCESS"}


@pytest.mark.parametrize("name", FORWARD)
def test_a_whole_graph_has_the_gradients_of_eager_calls_also_when_sizes_change(name: str) -> None:
    function = getattr(ops, name)
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager", dynamic=True)
    for rows in (3, 5, 9):
        args, more = given(FORWARD[name], rows, gradients=True)
        leaves = [arg for arg in args if isinstance(arg, torch.Tensor) and arg.requires_grad]
        expected, got = (outputs(call(*args, **more)) for call in (function, compiled))
        torch.testing.assert_close(got, expected, rtol=0, atol=0)
        grads = [torch.randn_like(out) for out in expected]
        torch.testing.assert_close(*(torch.autograd.grad(outs, leaves, grads) for outs in (got, expected)), rtol=0, atol=0)


REFUSED: dict[str, Callable[[], tuple[Any, ...]]] = {
    "rmsnorm": lambda: (torch.ones(2, 4), torch.ones(5)),
    "add_rmsnorm": lambda: (torch.ones(2, 4), torch.ones(2, 5)),
    "softmax_backward": lambda: (torch.ones(2, 4), torch.ones(2, 4).half()),
    "swiglu": lambda: (torch.ones(2, 3),),
    "rope": lambda: (torch.ones(2, 3, 7), torch.ones(9, 3), torch.ones(9, 3), torch.arange(2)),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_refusal_reads_the_same_compiled(name: str) -> None:
    args = REFUSED[name]()
    with pytest.raises(kernelyard.errors.InvalidInput) as eager:
        getattr(ops, name)(*args)
    with pytest.raises(Exception, match=f"{name}: ") as compiled:
        torch.compile(lambda *args: getattr(ops, name)(*args), fullgraph=True, backend="eager")(*args)
    assert str(eager.value) in str(compiled.value)
