"""A norm and the linear layer behind it in one: rmsnorm(x) @ w.T + bias, what a decoder's block begins with.

x is (..., k), norm (k,), w (n, k) as a linear layer has it, bias (n,). The result is (..., n).

Casting is Llama's: x is normalised in float32 and rounded to its own dtype, multiplied by norm in that dtype, and that is the product's
factor. A kernel may leave out roundings, not add any: the tolerance grants those two. Sums and bias are in float32, rounded once.

Constant weights. With `constant_weights` the caller says that no work still queued ahead of the call writes norm, w or bias: a kernel may
then read them before the one ahead of it on the stream has ended. In a model that serves they were written once, and which kernel
waits for which costs about 1 us a launch. Without it they are read after it, as x always is.

Source: Zhang and Sennrich, "Root Mean Square Layer Normalization" (2019), equation 4; see `rmsnorm`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kernelyard.contracts.matmul_points import sum_error
from kernelyard.contracts.rmsnorm import EPS
from kernelyard.contracts.rmsnorm_linear_points import NORM_ROUNDINGS, linear_matrices, norm_error
from kernelyard.contracts.rows import ALL_DTYPES, EPSILON, SMALLEST, random_tensor, refuse_elsewhere, refuse_rows
from kernelyard.errors import InvalidInput
from kernelyard.registry.lazy import torch
from kernelyard.registry.matrix import GIVEN, collapse
from kernelyard.registry.op import Gradient, Op
from kernelyard.registry.spec import Cost, Scalar, TensorSpec, Tolerance, Workload

if TYPE_CHECKING:
    from torch import Generator, Tensor


def _tensors(sizes: Mapping[str, int], dtype: str, statics: Mapping[str, Scalar]) -> dict[str, TensorSpec | None]:
    rows, n, k = sizes["rows"], sizes["n"], sizes["k"]
    shapes = {"x": (rows, k), "norm": (k,), "w": (n, k)}
    bias = TensorSpec((n,), dtype) if statics.get("bias") == GIVEN else None
    return {**{name: TensorSpec(shape, dtype) for name, shape in shapes.items()}, "bias": bias}


def _sizes(specs: Mapping[str, TensorSpec | None]) -> dict[str, int]:
    x, w = specs["x"], specs["w"]
    assert x is not None and w is not None
    return {"rows": math.prod(x.shape[:-1]), "n": w.shape[0], "k": x.shape[-1]}


def _merge(specs: Mapping[str, TensorSpec | None]) -> Mapping[str, TensorSpec | None]:
    """Leading dimensions of x as one."""
    return {name: collapse(spec, 2) if spec and name == "x" else spec for name, spec in specs.items()}


def validate(x: Tensor, norm: Tensor, w: Tensor, bias: Tensor | None, eps: float, constant_weights: bool) -> None:
    """Refuses what the contract leaves undefined."""
    refuse_rows("rmsnorm_linear", "x", x)
    columns = w.shape[0] if w.dim() == 2 else 0
    refuse_weights("rmsnorm_linear", x, {"norm": (norm, x.shape[-1:]), "w": (w, (columns, x.shape[-1])), "bias": (bias, (columns,))}, eps)


def refuse_weights(op: str, x: Tensor, weights: Mapping[str, tuple[Tensor | None, tuple[int, ...]]], eps: float) -> None:
    """Weights of other shapes than these, of another dtype than x's or elsewhere; a negative eps."""
    for name, (tensor, shape) in weights.items():
        if tensor is None:
            continue
        if tensor.shape != shape:
            asked = f"{op}: {name} has shape {tuple(tensor.shape)}, x {tuple(x.shape)}."
            raise InvalidInput(asked, do="Give x as (..., k), norm as (k,), w as (n, k) and bias as (n,).")
        if tensor.dtype != x.dtype:
            raise InvalidInput(f"{op}: {name} is {tensor.dtype}, x is {x.dtype}.", do=f"Give {name} in x's dtype.")
        refuse_elsewhere(op, name, tensor, "x", x)
    if not eps >= 0:
        raise InvalidInput(f"{op}: eps is {eps}.", do="Give eps >= 0.")


def reference(x: Tensor, norm: Tensor, w: Tensor, bias: Tensor | None, eps: float, constant_weights: bool) -> Tensor:
    """The meaning, in the precision of x; what the casting rounds away is part of the tolerance."""
    product = normalised(x, norm, eps) @ w.T
    return product if bias is None else product + bias


def normalised(x: Tensor, norm: Tensor, eps: float) -> Tensor:
    """rmsnorm of the rows of x, in its precision."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * norm


def _empty(x: Tensor, norm: Tensor, w: Tensor, bias: Tensor | None, eps: float, constant_weights: bool) -> tuple[Tensor, ...]:
    return (x.new_empty((*x.shape[:-1], w.shape[0])),)


def _inputs(workload: Workload, generator: Generator) -> tuple[Any, ...]:
    """w of size 1 / sqrt(k), so that results are of size 1."""
    x, norm, w = norm_inputs(workload, generator)
    bias = random_tensor(workload["bias"], generator) if workload.has("bias") else None
    return x, norm, w, bias, EPS, workload.static("constant_weights")


def norm_inputs(workload: Workload, generator: Generator) -> tuple[Tensor, Tensor, Tensor]:
    """x, norm around 1 and w of size 1 / sqrt(k)."""
    x, norm = random_tensor(workload["x"], generator), random_tensor(workload["norm"], generator, mean=1.0, std=0.3)
    return x, norm, random_tensor(workload["w"], generator, std=max(workload.dim("k"), 1) ** -0.5)


def _tolerance(workload: Workload) -> Tolerance:
    rounding, wide, k = EPSILON[workload.dtype], EPSILON["float32"], max(workload.dim("k"), 1)
    drift, cast = sum_error(workload.dtype, k), norm_error(workload.dtype)
    return Tolerance(
        1.01 * rounding * (1 + NORM_ROUNDINGS) + wide * (80 + k / 8),
        cast + 2 * drift + SMALLEST[workload.dtype],
        f"one rounding of the result and {NORM_ROUNDINGS} of the factor, where they go one way, to {workload.dtype} of {rounding:.1e} "
        f"each, and an eighth of a half unit in float32 for each of {k} terms; absolute, {cast:.1e} for the factor's roundings in results "
        f"of size 1 that cancel, and twice the {drift:.1e} by which a float32 sum of {k} products may be off",
        1 + NORM_ROUNDINGS,
    )


def _cost(workload: Workload) -> Cost:
    rows, n, k = (workload.dim(name) for name in ("rows", "n", "k"))
    given = sum(spec.nbytes for _, spec in workload.tensors if spec is not None)
    return Cost(bytes=given + rows * n * workload["x"].nbytes // max(workload["x"].numel, 1), flops=2 * rows * n * k + 4 * rows * k)


def _saved(args: tuple[Any, ...], outputs: tuple[Any, ...]) -> tuple[Any, ...]:
    return args[:5]


def _backward(saved: tuple[Any, ...], grads: tuple[Any, ...]) -> tuple[Any, ...]:
    x, norm, w, bias, eps = saved
    rows, dy = x.reshape(math.prod(x.shape[:-1]), x.shape[-1]), grads[0].reshape(-1, w.shape[0])
    dx, dnorm, dw = through_norm(rows, norm, w, dy, eps)
    db = None if bias is None else dy.sum(0, dtype=torch.float32).to(bias.dtype)
    return dx.view(x.shape), dnorm, dw, db, None, None


def through_norm(rows: Tensor, norm: Tensor, w: Tensor, dy: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of x, norm and w for rows whose product with w has the gradient dy; the normalised rows are computed once more."""
    from kernelyard.registry.operator import operator

    matmul = operator("matmul")
    normal = operator("rmsnorm")(rows, norm, eps, casting="llama")
    dx, dnorm = operator("rmsnorm_backward")(matmul(dy, w), rows, norm, eps, casting="llama")
    return dx, dnorm, matmul(dy.mT, normal)


RMSNORM_LINEAR = Op(
    name="rmsnorm_linear",
    summary="rmsnorm with Llama's casting and the linear layer behind it",
    schema="(Tensor x, Tensor norm, Tensor w, Tensor? bias=None, float eps=1e-06, *, bool constant_weights=False) -> Tensor",
    dims=("rows", "n", "k"),
    dtypes=ALL_DTYPES,
    statics=("constant_weights",),
    tensors=_tensors,
    sizes=_sizes,
    validate=validate,
    empty=_empty,
    reference=reference,
    inputs=_inputs,
    tolerance=_tolerance,
    cost=_cost,
    matrices=linear_matrices(),
    filled=("x",),
    edges=("zeros", "repeated", "nan"),
    merge=_merge,
    gradient=Gradient(_saved, _backward),
    baseline="torch.plain",
)
