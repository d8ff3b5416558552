"""Squared ReLU, the activation of Primer's feed-forward: y = max(x, 0)^2, in float32, rounded once.

Source: So et al., "Primer: Searching for Efficient Transformers for Language Modeling" (2021), section 3. NaN propagates.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kernelyard.errors import InvalidInput
from kernelyard.registry.lazy import torch
from kernelyard.registry.op import Gradient, Op, Point
from kernelyard.registry.spec import Cost, Scalar, TensorSpec, Tolerance, Workload

if TYPE_CHECKING:
    from torch import Generator, Tensor

DTYPES = ("float32", "bfloat16", "float16")
ROUNDING = {"float32": 2.0**-24, "bfloat16": 2.0**-8, "float16": 2.0**-11}
"""Half a unit in the last place of 1.0: the error of one rounding to nearest."""

LENGTHS = (0, 1, 7, 31, 128, 1000, 4097, 65537)


def _tensors(sizes: Mapping[str, int], dtype: str, statics: Mapping[str, Scalar]) -> dict[str, TensorSpec | None]:
    return {"x": TensorSpec((sizes["n"],), dtype)}


def _sizes(specs: Mapping[str, TensorSpec | None]) -> dict[str, int]:
    x = specs["x"]
    assert x is not None
    return {"n": x.numel}


def validate(x: Tensor) -> None:
    """Refuses what the contract leaves undefined."""
    if str(x.dtype).removeprefix("torch.") not in DTYPES:
        raise InvalidInput(f"squared_relu: x is {x.dtype}.", exists=f"Its dtypes: {', '.join(DTYPES)}.")


def reference(x: Tensor) -> Tensor:
    """The meaning, in the precision of x."""
    return torch.relu(x).square()


def _empty(x: Tensor) -> tuple[Tensor, ...]:
    return (torch.empty(x.shape, dtype=x.dtype, device=x.device),)


def _inputs(workload: Workload, generator: Generator) -> tuple[Any, ...]:
    """Normal values, in a buffer one element longer where the workload asks for a misaligned address."""
    spec = workload["x"]
    offset = 0 if spec.aligned else 1
    values = torch.randn(spec.numel + offset, generator=generator, device=generator.device)
    return (values.to(getattr(torch, spec.dtype))[offset:].view(spec.shape),)


def _tolerance(workload: Workload) -> Tolerance:
    rounding = ROUNDING[workload.dtype]
    smallest = 2.0**-24 if workload.dtype == "float16" else 1e-37
    return Tolerance(1.01 * rounding, smallest, f"one rounding to {workload.dtype}: {rounding:.1e}; absolute: squares may underflow")


def _cost(workload: Workload) -> Cost:
    return Cost(bytes=2 * workload["x"].nbytes, flops=2 * workload["x"].numel)


def _saved(args: tuple[Any, ...], outputs: tuple[Any, ...]) -> tuple[Any, ...]:
    return args


def _backward(saved: tuple[Any, ...], grads: tuple[Any, ...]) -> tuple[Any, ...]:
    (x,) = saved
    return (2 * torch.relu(x) * grads[0],)


SQUARED_RELU = Op(
    name="squared_relu",
    summary="max(x, 0) squared",
    schema="(Tensor x) -> Tensor",
    dims=("n",),
    dtypes=DTYPES,
    tensors=_tensors,
    sizes=_sizes,
    validate=validate,
    empty=_empty,
    reference=reference,
    inputs=_inputs,
    tolerance=_tolerance,
    cost=_cost,
    matrices={
        "correctness": tuple(Point((n,), dtype, layout) for layout in ("contiguous", "offset") for n in LENGTHS for dtype in DTYPES),
        "smoke": tuple(Point((n,), dtype) for n in (0, 1, 4097) for dtype in DTYPES),
        "performance/cpu": tuple(Point((n,), "float32") for n in (4096, 1 << 18, 1 << 22)),
        "performance/cuda": tuple(Point((n,), "bfloat16") for n in (1 << 18, 1 << 26)),
        "held_out/cpu": (Point((1_000_003,), "float32"),),
        "held_out/cuda": (Point((1_000_003,), "bfloat16"),),
    },
    filled=("x",),
    # no 'large': the square of an extreme value overflows, by the op's own meaning
    edges=("zeros", "repeated", "denormal", "nan", "inf"),
    collapse=1,
    gradient=Gradient(_saved, _backward),
)
