"""Rotary position embedding: each pair of a head's elements is rotated by the angle of its token's position.

    x (tokens..., heads, dim), positions (tokens...), cos and sin (most_positions, dim / 2), looked up by position
    (p, q) -> (p * c - q * s, q * c + p * s)       c, s = cos[position, i], sin[position, i], pair i of dim / 2

In float32, rounded once. Style 'half' pairs elements (i, i + dim / 2), as Hugging Face's Llama does, 'interleaved'
(2 i, 2 i + 1), as in the paper. `inverse` rotates by the negative angle, which is the gradient. Tables have no gradient.

Positions are int32 or int64, 0 <= position < most_positions. On a CPU others are refused: by name when shapes and dtypes are
met for the first time, later by whatever error the kernel has for them, which must not take a negative one from the end. On
a GPU nobody looks, since that would wait for the device: what a position out of range gives is undefined there, and may be
a fault of the device.

Source: Su et al., "RoFormer: Enhanced Transformer with Rotary Position Embedding" (2021), equation 34.
In place: with `out=`, the result may be x itself.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kernelyard.contracts.rows import ALL_DTYPES, EPSILON, points, random_tensor, refuse_dtype, refuse_elsewhere
from kernelyard.errors import InvalidInput
from kernelyard.registry.lazy import torch
from kernelyard.registry.op import Gradient, Op, Point
from kernelyard.registry.spec import Cost, Scalar, TensorSpec, Tolerance, Workload

if TYPE_CHECKING:
    from torch import Generator, Tensor

STYLES = ("half", "interleaved")
BASE = 10000.0
"""Of the angles of typical inputs: position * BASE ** (-2 i / dim), as in the paper."""


def _tensors(sizes: Mapping[str, int], dtype: str, statics: Mapping[str, Scalar]) -> dict[str, TensorSpec | None]:
    tokens, heads, dim = sizes["tokens"], sizes["heads"], sizes["dim"]
    table = TensorSpec((1, dim // 2), "float32")
    return {"x": TensorSpec((tokens, heads, dim), dtype), "cos": table, "sin": table, "positions": TensorSpec((tokens,), "int64")}


def _sizes(specs: Mapping[str, TensorSpec | None]) -> dict[str, int]:
    x = specs["x"]
    assert x is not None
    if x.shape[-1] % 2:
        raise InvalidInput(f"rope: dim is {x.shape[-1]}, which has no pairs.", do="Give an even dim.")
    return {"tokens": math.prod(x.shape[:-2]), "heads": x.shape[-2], "dim": x.shape[-1]}


def validate(x: Tensor, cos: Tensor, sin: Tensor, positions: Tensor, style: str, inverse: bool) -> None:
    """Refuses what the contract leaves undefined."""
    if x.dim() < 2:
        raise InvalidInput(f"rope: x has shape {tuple(x.shape)}.", do="Give x as (tokens..., heads, dim).")
    refuse_dtype("rope", "x", x)
    if x.shape[-1] % 2:
        raise InvalidInput(f"rope: dim is {x.shape[-1]}, which has no pairs.", do="Give an even dim.")
    for name, table in (("cos", cos), ("sin", sin)):
        _refuse_table(name, table, x)
    if cos.shape != sin.shape or cos.dtype != sin.dtype:
        told = f"cos is {cos.dtype} {tuple(cos.shape)}, sin {sin.dtype} {tuple(sin.shape)}"
        raise InvalidInput(f"rope: {told}.", do="Give both in one shape and dtype.")
    _refuse_positions(positions, x, cos.shape[0])
    if style not in STYLES:
        raise InvalidInput(f"rope: style is '{style}'.", exists=f"There are: {', '.join(STYLES)}.")


def _refuse_table(name: str, table: Tensor, x: Tensor) -> None:
    if table.dim() != 2 or table.shape[1] != x.shape[-1] // 2:
        told = f"{name} has shape {tuple(table.shape)}, dim is {x.shape[-1]}"
        raise InvalidInput(f"rope: {told}.", do=f"Give {name} as (most_positions, dim / 2).")
    if table.dtype not in (torch.float32, x.dtype):
        raise InvalidInput(f"rope: {name} is {table.dtype}, x is {x.dtype}.", do=f"Give {name} in float32 or x's dtype.")
    refuse_elsewhere("rope", name, table, "x", x)


def _refuse_positions(positions: Tensor, x: Tensor, most: int) -> None:
    if positions.shape != x.shape[:-2]:
        told = f"positions has shape {tuple(positions.shape)}, x has {tuple(x.shape)}"
        raise InvalidInput(f"rope: {told}.", do="Give one position a token: positions of shape x.shape[:-2].")
    if positions.dtype not in (torch.int64, torch.int32):
        raise InvalidInput(f"rope: positions is {positions.dtype}.", exists="Its dtypes: int64, int32.")
    refuse_elsewhere("rope", "positions", positions, "x", x)
    if type(positions) is torch.Tensor and positions.device.type == "cpu" and positions.numel():
        low, high = (int(end) for end in torch.aminmax(positions))
        if low < 0 or high >= most:
            told = f"positions has {low if low < 0 else high}, cos and sin have {most} rows"
            raise InvalidInput(f"rope: {told}.", do="Give positions from 0 to rows - 1.")


def reference(x: Tensor, cos: Tensor, sin: Tensor, positions: Tensor, style: str, inverse: bool) -> Tensor:
    """The meaning, in the precision of x."""
    c, s = (table[positions.long()].unsqueeze(-2).to(x.dtype) for table in (cos, sin))
    s = -s if inverse else s
    if style == "half":
        p, q = x.chunk(2, -1)
        return torch.cat((p * c - q * s, q * c + p * s), -1)
    p, q = x[..., ::2], x[..., 1::2]
    return torch.stack((p * c - q * s, q * c + p * s), -1).flatten(-2)


def _empty(x: Tensor, cos: Tensor, sin: Tensor, positions: Tensor, style: str, inverse: bool) -> tuple[Tensor, ...]:
    return (torch.empty_like(x, memory_format=torch.contiguous_format),)


def _inputs(workload: Workload, generator: Generator) -> tuple[Any, ...]:
    """Angles of the paper's base; tokens at positions in no order, none twice, of twice as many as there are tokens."""
    tokens, dim, device = workload.dim("tokens"), workload.dim("dim"), generator.device
    most = 2 * tokens + 1
    frequencies = BASE ** (-torch.arange(0, dim, 2, dtype=torch.float64, device=device) / max(dim, 1))
    angles = torch.arange(most, dtype=torch.float64, device=device)[:, None] * frequencies
    cos, sin = angles.cos().to(getattr(torch, workload["cos"].dtype)), angles.sin().to(getattr(torch, workload["sin"].dtype))
    positions = torch.randperm(most, generator=generator, device=device)[:tokens].to(getattr(torch, workload["positions"].dtype))
    return random_tensor(workload["x"], generator), cos, sin, positions, workload.static("style"), workload.static("inverse")


def _tolerance(workload: Workload) -> Tolerance:
    rounding, wide = EPSILON[workload.dtype], EPSILON["float32"]
    return Tolerance(
        1.01 * rounding + 4 * wide,
        32 * wide,
        f"one rounding to {workload.dtype} of {rounding:.1e}, and two products and a sum in float32; absolute, {32 * wide:.1e}: products "
        "of up to 10 each, with a rounding each, that cancel",
        1,
    )


def _cost(workload: Workload) -> Cost:
    tokens, x = workload.dim("tokens"), workload["x"]
    tables = tokens * (workload["cos"].nbytes + workload["sin"].nbytes)
    return Cost(bytes=2 * x.nbytes + tables + workload["positions"].nbytes, flops=3 * x.numel)


def _saved(args: tuple[Any, ...], outputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """Refuses tables that wait for a gradient: autograd would take none for zero."""
    for name, table in (("cos", args[1]), ("sin", args[2])):
        if table.requires_grad:
            raise InvalidInput(f"rope: {name} requires a gradient, and rope has one for x alone.", do=f"Give {name}.detach().")
    return args[1:]


def _backward(saved: tuple[Any, ...], grads: tuple[Any, ...]) -> tuple[Any, ...]:
    from kernelyard.registry.operator import operator

    cos, sin, positions, style, inverse = saved
    dx = operator("rope")(grads[0], cos, sin, positions, style=style, inverse=not inverse)
    return dx, None, None, None, None, None


@functools.cache
def _matrices() -> Mapping[str, tuple[Point, ...]]:
    usual, odd = (
        itertools.product((0, 1, 2, 7, 33, 1000), (1, 5, 32), (64, 128)),
        itertools.product((1, 7, 33), (1, 3), (2, 32, 96, 130, 256)),
    )
    shapes = (*usual, *odd)
    interleaved, inverse = ("style", "interleaved"), ("inverse", True)
    meanings: tuple[tuple[tuple[str, Scalar], ...], ...] = ((interleaved,), (inverse,), (interleaved, inverse))
    others = tuple(Point(shape, dtype, statics=m) for shape in ((7, 3, 64), (33, 5, 96)) for dtype in ALL_DTYPES for m in meanings)
    layouts = ("offset", "row_strided", "transposed", "broadcast")
    strided = tuple(Point((7, 3, 64), dtype, layout) for layout in layouts for dtype in ALL_DTYPES)
    cuda = ((1, 32, 128), (16, 32, 128), (4096, 32, 128), (8192, 40, 128), (8192, 32, 64), (1000, 5, 96))
    return {
        "correctness": points(shapes, ALL_DTYPES) + others + strided,
        "smoke": points(((0, 2, 64), (1, 1, 2), (7, 3, 64), (33, 2, 96)), ALL_DTYPES) + others[: len(others) // 2] + strided[::3],
        "performance/cpu": points(((1, 32, 128), (16, 32, 128), (512, 32, 128), (1000, 5, 96)), ("float32",)),
        "performance/cuda": points(cuda, ("bfloat16",)),
        "held_out/cpu": points(((4, 32, 64), (300, 8, 128)), ("float32",)),
        "held_out/cuda": points(((4, 32, 64), (3000, 24, 128), (777, 8, 256)), ("bfloat16",)),
    }


ROPE = Op(
    name="rope",
    summary="rotary position embedding of heads, by tables of cosines and sines",
    schema="(Tensor x, Tensor cos, Tensor sin, Tensor positions, *, str style='half', bool inverse=False) -> Tensor",
    dims=("tokens", "heads", "dim"),
    dtypes=ALL_DTYPES,
    statics=("style", "inverse"),
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
    edges=("zeros", "denormal", "nan"),
    collapse=3,
    tables=("cos", "sin"),
    in_place=((0, "x"),),
    gradient=Gradient(_saved, _backward),
    baseline="torch.plain",
)
