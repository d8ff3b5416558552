"""Matrix product with an epilogue: act(a @ b + bias) * scale + residual.

a is (..., m, k); b is (k, n), or (..., k, n) with the very leading dimensions of a. bias is (n,), residual of the result's shape.
Strides are as they come. Sums, and all that follows the product, are in float32 at least, rounded once at the end. k = 0 leaves
act(bias) * scale + residual.

Activations: relu; gelu, x * (1 + erf(x / sqrt(2))) / 2 (Hendrycks and Gimpel, 2016); gelu_tanh, their approximation
x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3))) / 2; silu, x / (1 + exp(-x)).

Precision, of float32 tensors: 'ieee' multiplies in float32; 'tf32' leaves each factor 10 bits of mantissa, rounded or cut. Both are found:
Hopper's tensor cores cut what they read from shared memory, cuBLAS rounds first (error of all at K = 129 on an H200: 7.7e-4 and 2.9e-4).
torch's own switches for TF32 are not asked.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kernelyard.contracts.matmul_points import LAYOUTS, Specs, matmul_matrices, sum_error
from kernelyard.contracts.rows import ALL_DTYPES, EPSILON, SMALLEST, random_tensor, refuse_dtype, refuse_elsewhere
from kernelyard.errors import InvalidInput
from kernelyard.registry.lazy import torch
from kernelyard.registry.matrix import GIVEN, collapse
from kernelyard.registry.op import Gradient, Op
from kernelyard.registry.spec import Cost, Scalar, TensorSpec, Tolerance, Workload

if TYPE_CHECKING:
    from torch import Generator, Tensor

ACTIVATIONS = ("none", "relu", "gelu", "gelu_tanh", "silu")
PRECISIONS = ("ieee", "tf32")
TF32_CUT = 2.0**-10
"""The most that a factor loses of itself where its mantissa is cut; half of it where it is rounded."""
TF32_NORM = 0.757 * TF32_CUT
"""What cut factors of any mantissa m in [1, 2) come to in the error of all: each loses u / m of 2^-10, u even in [0, 1). All lose alike, so
two means of ln(2) / 2 add, and two standard deviations of sqrt(1/6 - ln(2)^2 / 4) in squares: sqrt(0.693^2 + 2 * 0.216^2) = 0.757."""
STEEPEST = 1.13
"""No activation multiplies an error by more: gelu's slope reaches 1.129, silu's 1.100."""
RESIDUAL_SCALE = 0.75
"""Of typical inputs with a residual, so that a scale left out is seen. The others have 1, which costs plain torch nothing."""


def _tensors(sizes: Mapping[str, int], dtype: str, statics: Mapping[str, Scalar]) -> dict[str, TensorSpec | None]:
    m, n, k = sizes["m"], sizes["n"], sizes["k"]
    lead = () if sizes["batch"] == 1 else (sizes["batch"],)
    shapes = {"a": (*lead, m, k), "b": (*lead, k, n), "bias": (n,), "residual": (*lead, m, n)}
    return {name: TensorSpec(shape, dtype) if name in "ab" or statics.get(name) == GIVEN else None for name, shape in shapes.items()}


def _sizes(specs: Specs) -> dict[str, int]:
    a, b = specs["a"], specs["b"]
    assert a is not None and b is not None
    batch = math.prod(b.shape[:-2])
    rows = math.prod(a.shape[:-1]) if len(b.shape) == 2 else a.shape[-2]
    return {"batch": batch, "m": rows, "n": b.shape[-1], "k": a.shape[-1]}


def _merge(specs: Specs) -> Specs:
    """Leading dimensions as one: with the rows where b has none, else for themselves. What can't be so viewed stays."""
    b = specs["b"]
    assert b is not None
    keep = 2 if len(b.shape) == 2 else 3
    merged = {name: collapse(spec, keep) if spec and name != "bias" else spec for name, spec in specs.items()}
    if keep == 3 and all(spec is None or name == "bias" or spec.shape[0] == 1 for name, spec in merged.items()):
        flat = {name: TensorSpec(s.shape[1:], s.dtype, s.strides[1:], s.aligned) for name, s in merged.items() if s and name != "bias"}
        return {**merged, **flat}
    return merged


def validate(
    a: Tensor, b: Tensor, bias: Tensor | None, residual: Tensor | None, scale: float, activation: str, precision: str
) -> None:
    """Refuses what the contract leaves undefined."""
    if a.dim() < 2 or b.dim() < 2 or a.shape[-1] != b.shape[-2] or (b.dim() > 2 and a.shape[:-2] != b.shape[:-2]):
        told = f"a has shape {tuple(a.shape)}, b {tuple(b.shape)}"
        raise InvalidInput(f"matmul: {told}.", do="Give a as (..., m, k) and b as (k, n), or as (..., k, n) with the leading sizes of a.")
    refuse_dtype("matmul", "a", a)
    shapes = {"b": (b, b.shape), "bias": (bias, b.shape[-1:]), "residual": (residual, (*a.shape[:-1], b.shape[-1]))}
    for name, (tensor, shape) in shapes.items():
        if tensor is None:
            continue
        if tensor.shape != shape:
            raise InvalidInput(f"matmul: {name} has shape {tuple(tensor.shape)}.", do=f"Give {name} as {tuple(shape)}.")
        if tensor.dtype != a.dtype:
            raise InvalidInput(f"matmul: {name} is {tensor.dtype}, a is {a.dtype}.", do=f"Give {name} in a's dtype.")
        refuse_elsewhere("matmul", name, tensor, "a", a)
    for name, value, known in (("activation", activation, ACTIVATIONS), ("precision", precision, PRECISIONS)):
        if value not in known:
            raise InvalidInput(f"matmul: {name} is '{value}'.", exists=f"There are: {', '.join(known)}.")


def reference(
    a: Tensor, b: Tensor, bias: Tensor | None, residual: Tensor | None, scale: float, activation: str, precision: str
) -> Tensor:
    """The meaning, in the precision of a; what 'tf32' rounds is part of the tolerance."""
    product = a @ b if bias is None else a @ b + bias
    out = activate(product, activation) * scale
    return out if residual is None else out + residual


def activate(x: Tensor, activation: str) -> Tensor:
    """The activation of that name, in the precision of x."""
    if activation == "none":
        return x
    if activation == "gelu_tanh":
        return torch.nn.functional.gelu(x, approximate="tanh")
    return {"relu": torch.relu, "gelu": torch.nn.functional.gelu, "silu": torch.nn.functional.silu}[activation](x)


def _empty(
    a: Tensor, b: Tensor, bias: Tensor | None, residual: Tensor | None, scale: float, activation: str, precision: str
) -> tuple[Tensor, ...]:
    return (a.new_empty((*a.shape[:-1], b.shape[-1])),)


def _inputs(workload: Workload, generator: Generator) -> tuple[Any, ...]:
    """b of size 1 / sqrt(k), so that results are of size 1."""
    shrunk = max(workload.dim("k"), 1) ** -0.5
    a, b = random_tensor(workload["a"], generator), random_tensor(workload["b"], generator, std=shrunk)
    bias, residual = (random_tensor(workload[name], generator) if workload.has(name) else None for name in ("bias", "residual"))
    scale = 1.0 if residual is None else RESIDUAL_SCALE
    return a, b, bias, residual, scale, workload.static("activation"), workload.static("precision")


def _tolerance(workload: Workload) -> Tolerance:
    """Terms of size 1 / sqrt(k) wander to a sum of size 1. Sums of one sign, which `repeated` makes, drift with their length."""
    rounding, wide, k = EPSILON[workload.dtype], EPSILON["float32"], max(workload.dim("k"), 1)
    tf32 = (workload.dtype, workload.static("precision")) == ("float32", "tf32")
    drift, factors = sum_error("tf32" if tf32 else workload.dtype, k), 2 * TF32_CUT if tf32 else 0.0
    return Tolerance(
        1.01 * rounding + wide * (80 + k / 8) + factors,
        STEEPEST * (2 * drift + 2.5 * factors) + SMALLEST[workload.dtype],
        f"one rounding to {workload.dtype} of {rounding:.1e}, an activation in float32 and an eighth of a half unit for each of {k} terms; "
        f"absolute, twice the {drift:.1e} by which a float32 sum of {k} products may be off, for results of size 1 that cancel"
        + (", and factors cut to TF32, of which 2.5 times the most that two lose is five standard deviations and more" if tf32 else "")
        + f"; times {STEEPEST}, the steepest slope of an activation",
        1,
        factors=TF32_NORM if tf32 else 0.0,
    )


def _cost(workload: Workload) -> Cost:
    products = workload.dim("batch") * workload.dim("m") * workload.dim("n")
    given = sum(spec.nbytes for _, spec in workload.tensors if spec is not None)
    return Cost(bytes=given + products * workload["a"].nbytes // max(workload["a"].numel, 1), flops=2 * products * workload.dim("k"))


def _saved(args: tuple[Any, ...], outputs: tuple[Any, ...]) -> tuple[Any, ...]:
    return args


def _backward(saved: tuple[Any, ...], grads: tuple[Any, ...]) -> tuple[Any, ...]:
    """By two products of the same op. An activation's slope is taken at the product itself, computed once more."""
    from kernelyard.registry.operator import operator

    a, b, bias, residual, scale, activation, precision = saved
    product = functools.partial(operator("matmul"), precision=precision)
    slope = grads[0] if scale == 1.0 else grads[0] * scale
    if activation != "none":
        slope = _through(product(a, b, bias), slope, activation)
    flat = slope.flatten(0, -2)
    rows, columns = (slope, a) if b.dim() > 2 else (flat, a.flatten(0, -2))
    return (
        product(slope, b.mT),
        product(columns.mT, rows),
        None if bias is None else flat.sum(0, dtype=torch.float32).to(bias.dtype),
        None if residual is None else grads[0],
        None,
        None,
        None,
    )  # fmt: skip


def _through(x: Tensor, grad: Tensor, activation: str) -> Tensor:
    """The activation's gradient at x, in float32, rounded once."""
    with torch.enable_grad():
        wide = x.detach().float().requires_grad_()
        (slope,) = torch.autograd.grad(activate(wide, activation), wide, grad.float())
    return slope.to(grad.dtype)


MATMUL = Op(
    name="matmul",
    summary="matrix product with bias, activation, scale and residual",
    schema="(Tensor a, Tensor b, Tensor? bias=None, Tensor? residual=None, float scale=1.0, *, str activation='none', "
    "str precision='ieee') -> Tensor",
    dims=("batch", "m", "n", "k"),
    dtypes=ALL_DTYPES,
    statics=("activation", "precision"),
    tensors=_tensors,
    sizes=_sizes,
    validate=validate,
    empty=_empty,
    reference=reference,
    inputs=_inputs,
    tolerance=_tolerance,
    cost=_cost,
    matrices=matmul_matrices(),
    filled=("a", "b"),
    edges=("zeros", "repeated", "nan"),
    merge=_merge,
    layouts=LAYOUTS,
    assumed={"batch": 1},
    gradient=Gradient(_saved, _backward),
    baseline="torch.plain",
)
