"""What tests of contracts share: typical inputs, their values in more precision, and whether a result is within the tolerance."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

import kernelyard
from kernelyard.contracts import plugin
from kernelyard.registry.matrix import Point
from kernelyard.registry.op import Op
from kernelyard.registry.spec import Scalar, Workload

HALF = ("bfloat16", "float16")
Statics = tuple[tuple[str, Scalar], ...]


def dims(op: Op, rows: int, cols: int) -> tuple[int, ...]:
    """Rows and columns in the dims of an op: one dimension takes the first, three take heads of at least one pair, keys are columns."""
    if op.dims[0] == "batch":
        shapes = {"matmul": (1, rows, cols, 8), "attention": (2, 2, 1, rows, cols, 8), "attention_decode": (rows, 2, 1, 1, cols, 8, 0),
                  "rope_attention_decode": (rows, 2, 1, cols, 8)}  # fmt: skip
        return shapes[op.name]
    return {1: (rows,), 2: (rows, cols), 3: (rows, 2, cols + cols % 2)}[len(op.dims)]


def inputs(op: Op, workload: Workload, seed: int = 0) -> tuple[Any, ...]:
    """Typical ones, the same for a seed."""
    return op.inputs(workload, torch.Generator().manual_seed(seed))


def typical(op: Op, rows: int, cols: int, dtype: str = "float32", statics: Statics = (), seed: int = 0) -> tuple[Any, ...]:
    """Typical inputs of a point."""
    return inputs(op, op.workload(Point(dims(op, rows, cols), dtype, statics=statics)), seed)


def wide(args: tuple[Any, ...], dtype: torch.dtype = torch.float64) -> tuple[Any, ...]:
    """The same values with floating-point tensors in another dtype."""
    return tuple(arg.to(dtype) if isinstance(arg, torch.Tensor) and arg.is_floating_point() else arg for arg in args)


def equal(one: Any, other: Any) -> bool:
    """Whether two arguments are the same, NaN in the same places."""
    if not isinstance(one, torch.Tensor):
        return bool(one == other)
    return one.dtype == other.dtype and one.shape == other.shape and torch.allclose(one, other, rtol=0, atol=0, equal_nan=True)


def outputs(result: Any) -> tuple[torch.Tensor, ...]:
    """One result or several, as a tuple."""
    return (result,) if isinstance(result, torch.Tensor) else tuple(result)


def within(op: Op, workload: Workload, out: Any, args: tuple[Any, ...]) -> bool:
    """Whether every output is within its tolerance of the reference in float64."""
    tolerance, expected = op.tolerance(workload), outputs(op.reference(*wide(args)))
    return all(
        bool(((o.double() - e).abs() <= tolerance.of(i).absolute + tolerance.of(i).relative * e.abs()).all())
        for i, (o, e) in enumerate(zip(outputs(out), expected, strict=True))
    )


def gradcheck(op: Op, args: tuple[Any, ...], differentiable: tuple[str, ...]) -> bool:
    """torch's numerical check of the reference in float64, for the arguments named."""
    names = [argument.name for argument in op.arguments]
    asked = tuple(a.requires_grad_() if n in differentiable and a is not None else a for n, a in zip(names, wide(args), strict=True))
    return bool(torch.autograd.gradcheck(op.reference, asked))


def derivative(
    function: Callable[..., Any], tensors: tuple[torch.Tensor, ...], grads: tuple[torch.Tensor, ...]
) -> tuple[torch.Tensor, ...]:
    """Autograd's gradients of a function of tensors, for a gradient of each of its outputs."""
    leaves = tuple(tensor.detach().clone().requires_grad_() for tensor in tensors)
    return torch.autograd.grad(outputs(function(*leaves)), leaves, grads)


@contextmanager
def plain_torch() -> Iterator[None]:
    """Every op served by plain torch, so that nothing is compiled for a test of a contract."""
    with kernelyard.use(**{op.name: "torch.eager" for op in plugin.ops}):
        yield
