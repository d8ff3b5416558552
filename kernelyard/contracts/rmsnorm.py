"""RMSNorm over the last dimension: y = x * rsqrt(mean(x^2) + eps) * (w + offset).

Source: Zhang and Sennrich, "Root Mean Square Layer Normalization" (2019), equation 4; eps inside the root, as
torch.nn.functional.rms_norm and every Llama has it.

Offset. 0 in Llama, 1 in Gemma, whose weights are stored less 1; added in float32.

Infinity. What the finite elements of a row with an infinity become is left open: torch 2.11 itself gives 0 on a CPU and
NaN on a GPU. A NaN makes its whole row NaN.

Casting. 'fp32' (torch and Gemma): everything in float32, one rounding at the end. 'llama' (Hugging Face Llama): x is
normalised in float32 and rounded to its own dtype, then multiplied by the weight in that dtype.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kernelyard.contracts.rows import (
    ALL_DTYPES,
    CPU_HELD_OUT,
    CPU_SHAPES,
    EPSILON,
    SMALLEST,
    in_other_words,
    points,
    random_tensor,
    refuse_dtype,
    refuse_elsewhere,
    refuse_rows,
    row_matrices,
    row_sizes,
    with_others,
)
from kernelyard.errors import InvalidInput
from kernelyard.registry.lazy import torch
from kernelyard.registry.matrix import ABSENT
from kernelyard.registry.op import Gradient, Op, Point
from kernelyard.registry.spec import Cost, Scalar, TensorSpec, Tolerance, Workload

if TYPE_CHECKING:
    from torch import Generator, Tensor

CASTING = ("fp32", "llama")
EPS = 1e-5
"""Of the typical inputs; Llama 3 has it. Not the default of the schema, so that a kernel with that built in is wrong."""


def _tensors(sizes: Mapping[str, int], dtype: str, statics: Mapping[str, Scalar]) -> dict[str, TensorSpec | None]:
    return {"x": TensorSpec((sizes["rows"], sizes["cols"]), dtype), "w": TensorSpec((sizes["cols"],), dtype)}


def _sizes(specs: Mapping[str, TensorSpec | None]) -> dict[str, int]:
    return row_sizes(specs, "x")


def validate(x: Tensor, w: Tensor | None, eps: float, offset: float, casting: str) -> None:
    """Refuses what the contract leaves undefined."""
    refuse_rows("rmsnorm", "x", x)
    refuse_norm("rmsnorm", "x", x, w, eps, casting)


def refuse_norm(op: str, name: str, x: Tensor, w: Tensor | None, eps: float, casting: str) -> None:
    """What no norm of the rows of `x`, called `name`, accepts: a weight that does not fit, a negative eps, an unknown casting."""
    if w is not None:
        if w.dim() != 1 or w.shape[0] != x.shape[-1]:
            raise InvalidInput(f"{op}: w has shape {tuple(w.shape)}, {name} has {x.shape[-1]} columns.", do="Give w as (cols,).")
        refuse_dtype(op, "w", w)
        refuse_elsewhere(op, "w", w, name, x)
    if not eps >= 0:
        raise InvalidInput(f"{op}: eps is {eps}.", do="Give eps >= 0.")
    if casting not in CASTING:
        raise InvalidInput(f"{op}: casting is '{casting}'.", exists=f"There are: {', '.join(CASTING)}.")


def reference(x: Tensor, w: Tensor | None, eps: float, offset: float, casting: str) -> Tensor:
    """The meaning, in the precision of x; what 'llama' casting rounds away is part of the tolerance."""
    y = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
    return y if w is None else y * (w.to(y.dtype) + offset)


def _empty(x: Tensor, w: Tensor | None, eps: float, offset: float, casting: str) -> tuple[Tensor, ...]:
    return (torch.empty_like(x, memory_format=torch.contiguous_format),)


def _inputs(workload: Workload, generator: Generator) -> tuple[Any, ...]:
    statics = dict(workload.statics)
    offset = float(statics.get("offset", 0.0))
    w = random_tensor(workload["w"], generator, mean=1.0 - offset, std=0.3) if workload.has("w") else None
    return random_tensor(workload["x"], generator), w, EPS, offset, statics["casting"]


def _tolerance(workload: Workload) -> Tolerance:
    rounding = EPSILON[workload.dtype]
    roundings = 3 if workload.static("casting") == "llama" else 1
    cols = max(workload.dim("cols"), 1)
    accumulated = EPSILON["float32"] * (8 + cols.bit_length() + cols**0.5)
    relative = 1.01 * rounding * roundings + accumulated
    return Tolerance(
        relative,
        SMALLEST[workload.dtype],
        f"{roundings} rounding(s) to {workload.dtype} of {rounding:.1e} each, and {accumulated:.1e} for a float32 sum of "
        f"{cols} squares in any order (sqrt of the length), rsqrt and two products; absolute: the smallest number of the dtype",
        roundings,
    )


def _cost(workload: Workload) -> Cost:
    weight = workload["w"].nbytes if workload.has("w") else 0
    return Cost(bytes=2 * workload["x"].nbytes + weight, flops=4 * workload["x"].numel)


def _saved(args: tuple[Any, ...], outputs: tuple[Any, ...]) -> tuple[Any, ...]:
    return args


def _backward(saved: tuple[Any, ...], grads: tuple[Any, ...]) -> tuple[Any, ...]:
    from kernelyard.registry.operator import operator

    x, w, eps, offset, casting = saved
    dx, dw = operator("rmsnorm_backward")(grads[0], x, w, eps, offset=offset, casting=casting)
    return dx, None if w is None else dw, None, None, None


@functools.cache
def norm_matrices() -> Mapping[str, tuple[Point, ...]]:
    """Those of rows, and the other meanings of a norm: Llama's casting, Gemma's offset, no weight."""
    return with_others(row_matrices(), in_other_words(("casting", "llama"), ("offset", 1.0), ("w", ABSENT)))


@functools.cache
def forward_matrices() -> Mapping[str, tuple[Point, ...]]:
    """Those of norms; on a CPU in bfloat16 too, in which models are served there."""
    frozen = norm_matrices()
    return {
        **frozen,
        "performance/cpu": frozen["performance/cpu"] + points(CPU_SHAPES, ("bfloat16",)),
        "held_out/cpu": frozen["held_out/cpu"] + points(CPU_HELD_OUT, ("bfloat16",)),
    }


RMSNORM = Op(
    name="rmsnorm",
    summary="root-mean-square normalisation of rows, times a weight",
    schema="(Tensor x, Tensor? w=None, float eps=1e-06, *, float offset=0.0, str casting='fp32') -> Tensor",
    dims=("rows", "cols"),
    dtypes=ALL_DTYPES,
    statics=("offset", "casting"),
    tensors=_tensors,
    sizes=_sizes,
    validate=validate,
    empty=_empty,
    reference=reference,
    inputs=_inputs,
    tolerance=_tolerance,
    cost=_cost,
    matrices=forward_matrices(),
    filled=("x",),
    edges=("zeros", "repeated", "large", "denormal", "nan"),
    collapse=2,
    gradient=Gradient(_saved, _backward),
)
