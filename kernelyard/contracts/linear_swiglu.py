"""The gated half of a model's MLP in one: silu(g) * u with [g | u] = x @ w.T, in float32, rounded once.

x is (..., k); w is (2 n, k) as two linear layers have it, the gate's rows first. The result is (..., n).

Source: Shazeer, "GLU Variants Improve Transformer" (2020), equation 6, without its last matrix.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kernelyard.contracts.matmul_points import CPU_DECODE, sum_error
from kernelyard.contracts.rows import ALL_DTYPES, EPSILON, SMALLEST, points, random_tensor, refuse_elsewhere, refuse_rows
from kernelyard.errors import InvalidInput
from kernelyard.registry.lazy import torch
from kernelyard.registry.op import Gradient, Op, Point
from kernelyard.registry.spec import Cost, Scalar, TensorSpec, Tolerance, Workload

if TYPE_CHECKING:
    from torch import Generator, Tensor


def _tensors(sizes: Mapping[str, int], dtype: str, statics: Mapping[str, Scalar]) -> dict[str, TensorSpec | None]:
    return {"x": TensorSpec((sizes["rows"], sizes["k"]), dtype), "w": TensorSpec((2 * sizes["n"], sizes["k"]), dtype)}


def _sizes(specs: Mapping[str, TensorSpec | None]) -> dict[str, int]:
    x, w = specs["x"], specs["w"]
    assert x is not None and w is not None
    return {"rows": math.prod(x.shape[:-1]), "n": w.shape[0] // 2, "k": x.shape[-1]}


def validate(x: Tensor, w: Tensor) -> None:
    """Refuses what the contract leaves undefined."""
    refuse_rows("linear_swiglu", "x", x)
    if w.dim() != 2 or w.shape[1] != x.shape[-1] or w.shape[0] % 2:
        raise InvalidInput(f"linear_swiglu: w has shape {tuple(w.shape)}, x {tuple(x.shape)}.", do="Give w as (2 * n, k), x as (..., k).")
    if w.dtype != x.dtype:
        raise InvalidInput(f"linear_swiglu: w is {w.dtype}, x is {x.dtype}.", do="Give both in one dtype.")
    refuse_elsewhere("linear_swiglu", "w", w, "x", x)


def reference(x: Tensor, w: Tensor) -> Tensor:
    """The meaning, in the precision of x."""
    gate, up = (x @ w.T).chunk(2, -1)
    return torch.nn.functional.silu(gate) * up


def _empty(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    return (x.new_empty((*x.shape[:-1], w.shape[0] // 2)),)


def _inputs(workload: Workload, generator: Generator) -> tuple[Any, ...]:
    """w of size 1 / sqrt(k), so that gates are of size 1."""
    return random_tensor(workload["x"], generator), random_tensor(workload["w"], generator, std=max(workload.dim("k"), 1) ** -0.5)


def _tolerance(workload: Workload) -> Tolerance:
    rounding, wide, k = EPSILON[workload.dtype], EPSILON["float32"], max(workload.dim("k"), 1)
    drift = sum_error(workload.dtype, k)
    return Tolerance(
        1.01 * rounding + 80 * wide,
        24 * drift + SMALLEST[workload.dtype],
        f"one rounding to {workload.dtype} of {rounding:.1e}, and an exponential in float32; absolute, 24 times the {drift:.1e} by which "
        f"a float32 sum of {k} products may be off: silu's slope is 1.1, and either sum is multiplied by the other, of up to 5 and more",
        1,
    )


def _cost(workload: Workload) -> Cost:
    rows, n, k = (workload.dim(name) for name in ("rows", "n", "k"))
    out = rows * n * workload["x"].nbytes // max(workload["x"].numel, 1)
    return Cost(bytes=workload["x"].nbytes + workload["w"].nbytes + out, flops=4 * rows * n * k + 5 * rows * n)


def _saved(args: tuple[Any, ...], outputs: tuple[Any, ...]) -> tuple[Any, ...]:
    return args


def _backward(saved: tuple[Any, ...], grads: tuple[Any, ...]) -> tuple[Any, ...]:
    """By the gradients of swiglu and of a product, which is computed once more."""
    from kernelyard.registry.operator import operator

    x, w = saved
    matmul, count = operator("matmul"), math.prod(x.shape[:-1])
    rows, dy = x.reshape(count, x.shape[-1]), grads[0].reshape(count, w.shape[0] // 2).contiguous()
    both, _ = operator("swiglu_backward")(dy, matmul(rows, w.mT), None)
    return matmul(both, w).view(x.shape), matmul(both.mT, rows)


def _matrices() -> Mapping[str, tuple[Point, ...]]:
    shapes = ((0, 8, 16), (1, 1, 1), (1, 17, 33), (2, 64, 65), (7, 129, 128), (16, 255, 127), (17, 15, 63), (33, 128, 1000), (1, 16, 8192))
    layouts = tuple(Point((7, 33, 65), dtype, layout) for layout in ("row_strided", "transposed", "offset") for dtype in ALL_DTYPES)
    cpu = tuple((m, n, k) for _, m, n, k in CPU_DECODE if n == 2048 or m == 1)
    return {
        "correctness": points((*shapes, (3, 0, 4), (3, 4, 0)), ALL_DTYPES) + layouts,
        "smoke": points(((0, 8, 16), (1, 1, 1), (1, 17, 33), (7, 33, 65), (3, 4, 0)), ALL_DTYPES) + layouts[::3],
        "performance/cpu": points(cpu, ("float32", "bfloat16")),
        "performance/cuda": points(((1, 14336, 4096), (1, 8192, 2048), (16, 14336, 4096)), ("bfloat16",)),
        "held_out/cpu": points(((1, 1536, 3072), (8, 1024, 1536)), ("float32", "bfloat16")),
        "held_out/cuda": points(((1, 11008, 4096), (8, 8192, 2048)), ("bfloat16",)),
    }


LINEAR_SWIGLU = Op(
    name="linear_swiglu",
    summary="two linear layers, silu of one times the other",
    schema="(Tensor x, Tensor w) -> Tensor",
    dims=("rows", "n", "k"),
    dtypes=ALL_DTYPES,
    tensors=_tensors,
    sizes=_sizes,
    validate=validate,
    empty=_empty,
    reference=reference,
    inputs=_inputs,
    tolerance=_tolerance,
    cost=_cost,
    matrices=_matrices(),
    filled=("x",),
    edges=("zeros", "nan"),
    collapse=2,
    gradient=Gradient(_saved, _backward),
    baseline="torch.plain",
)
