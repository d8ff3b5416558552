"""rope: both pairings as models write them, rotations that undo one another, positions, what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import kernelyard
from kernelyard import ops
from kernelyard.contracts import ROPE
from kernelyard.errors import InvalidInput
from kernelyard.registry.matrix import Point
from tests.contracts.cases import HALF, derivative, gradcheck, inputs, plain_torch, typical, wide, within

STYLES = pytest.mark.parametrize("style", ["half", "interleaved"])


def hugging_face(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """transformers' apply_rotary_pos_emb for one tensor (tokens, heads, dim): cos and sin doubled, rotate_half."""
    cos, sin = torch.cat((cos, cos), -1)[:, None], torch.cat((sin, sin), -1)[:, None]
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat((-second, first), -1) * sin


def paper(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Equation 34 as a product of complex numbers: pairs of neighbours."""
    turned = torch.view_as_complex(x.unflatten(-1, (-1, 2))) * torch.complex(cos, sin)[:, None]
    return torch.view_as_real(turned).flatten(-2)


def test_half_is_what_hugging_face_does_and_interleaved_what_the_paper_says() -> None:
    x, cos, sin, positions, *_ = wide(typical(ROPE, 7, 16))
    torch.testing.assert_close(ROPE.reference(x, cos, sin, positions, "half", False), hugging_face(x, cos[positions], sin[positions]))
    torch.testing.assert_close(ROPE.reference(x, cos, sin, positions, "interleaved", False), paper(x, cos[positions], sin[positions]))


@STYLES
def test_the_inverse_undoes_the_rotation_and_lengths_stay(style: str) -> None:
    x, cos, sin, positions, *_ = wide(typical(ROPE, 7, 16))
    y = ROPE.reference(x, cos, sin, positions, style, False)
    torch.testing.assert_close(ROPE.reference(y, cos, sin, positions, style, True), x, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(y.norm(dim=-1), x.norm(dim=-1), rtol=1e-6, atol=1e-6)


@STYLES
@pytest.mark.parametrize("inverse", [False, True])
def test_the_reference_has_the_derivative_of_its_differences_and_the_inverse_is_it(style: str, inverse: bool) -> None:
    x, cos, sin, positions, *_ = wide(typical(ROPE, 3, 6))
    assert gradcheck(ROPE, (x, cos, sin, positions, style, inverse), ("x",))
    dy = torch.randn_like(x)
    (expected,) = derivative(lambda x: ROPE.reference(x, cos, sin, positions, style, inverse), (x,), (dy,))
    torch.testing.assert_close(ROPE.reference(dy, cos, sin, positions, style, not inverse), expected)


@STYLES
@pytest.mark.parametrize("inverse", [False, True])
def test_autograd_through_rope_gives_the_reference_s(style: str, inverse: bool) -> None:
    x, cos, sin, positions, *_ = typical(ROPE, 7, 16)
    dy = torch.randn_like(x)
    with plain_torch():
        (dx,) = derivative(lambda x: ops.rope(x, cos, sin, positions, style=style, inverse=inverse), (x,), (dy,))
    torch.testing.assert_close(dx, ROPE.reference(dy, cos, sin, positions, style, not inverse), rtol=1e-5, atol=1e-6)


def test_typical_positions_are_in_no_order_and_the_tables_longer_than_the_tokens() -> None:
    _, cos, sin, positions, *_ = typical(ROPE, 33, 96)
    assert positions.tolist() != sorted(positions.tolist()) and cos.shape == sin.shape == (67, 48)
    torch.testing.assert_close(cos.square() + sin.square(), torch.ones(67, 48))


def test_the_length_of_the_tables_is_no_part_of_a_workload() -> None:
    x, cos, sin, positions, *statics = typical(ROPE, 7, 16)
    short = int(positions.max()) + 1
    assert ROPE.workload_of((x, cos[:short], sin[:short], positions, *statics)) == ROPE.workload(Point((7, 2, 16), "float32"))


def test_any_number_of_token_dimensions_are_one_workload() -> None:
    x, cos, sin, positions, *statics = typical(ROPE, 8, 16)
    folded = (x.view(2, 4, 2, 16), cos, sin, positions.view(2, 4), *statics)
    assert ROPE.workload_of(folded).key() == ROPE.workload(Point((8, 2, 16), "float32")).key()
    one = (x[0], cos, sin, positions[0], *statics)
    assert ROPE.workload_of(one).key() == ROPE.workload(Point((1, 2, 16), "float32")).key()
    torch.testing.assert_close(ROPE.reference(*folded).view(8, 2, 16), ROPE.reference(x, cos, sin, positions, *statics), rtol=0, atol=0)


@pytest.mark.parametrize("dtype", ["float32", *HALF])
@STYLES
def test_float32_rounded_once_is_within_the_tolerance_and_rounded_products_are_not(dtype: str, style: str) -> None:
    for dims in ((1, 1, 2), (7, 3, 64), (33, 5, 96)):
        workload = ROPE.workload(Point(dims, dtype, statics=(("style", style),)))
        args = inputs(ROPE, workload)
        assert within(ROPE, workload, ROPE.reference(*wide(args, torch.float32)).to(args[0].dtype), args), dims
    if dtype in HALF:
        x, cos, sin, positions, *statics = args
        low = ROPE.reference(x, cos.to(x.dtype), sin.to(x.dtype), positions, *statics)
        assert not within(ROPE, workload, low, args)


def test_another_pairing_angle_or_order_of_positions_is_outside_the_tolerance() -> None:
    workload = ROPE.workload(Point((7, 3, 64), "bfloat16"))
    x, cos, sin, positions, *_ = args = inputs(ROPE, workload)
    assert within(ROPE, workload, ROPE.reference(x.float(), cos, sin, positions, "half", False).bfloat16(), args)
    for wrong in ((positions, "interleaved", False), (positions, "half", True), (torch.arange(7), "half", False)):
        assert not within(ROPE, workload, ROPE.reference(x.float(), cos, sin, *wrong).bfloat16(), args)


def test_the_cost_is_x_twice_and_a_row_of_each_table_a_token() -> None:
    cost = ROPE.cost(ROPE.workload(Point((8, 2, 16), "bfloat16")))
    assert cost.bytes == 2 * 8 * 2 * 16 * 2 + 2 * 8 * 8 * 4 + 8 * 8


# What is refused --------------------------------------------------------------------------------------

X, T, P = torch.ones(4, 2, 8), torch.ones(10, 4), torch.arange(4)


@pytest.mark.parametrize(
    ("args", "told"),
    [
        ((torch.ones(8), T, T, P), r"x has shape \(8,\). Give x as \(tokens..., heads, dim\)"),
        ((torch.ones(4, 2, 7), T, T, P), "dim is 7, which has no pairs"),
        ((X.int(), T, T, P), "x is torch.int32"),
        ((X, torch.ones(10, 8), T, P), r"cos has shape \(10, 8\), dim is 8. Give cos as \(most_positions, dim / 2\)"),
        ((X, T, torch.ones(4), P), r"sin has shape \(4,\), dim is 8"),
        ((X, T, torch.ones(9, 4), P), r"cos is torch.float32 \(10, 4\), sin torch.float32 \(9, 4\)"),
        ((X, T.half(), T.half(), P), "cos is torch.float16, x is torch.float32"),
        ((X, T, T.to("meta"), P), "sin is on meta, x on cpu"),
        ((X, T, T, torch.arange(3)), r"positions has shape \(3,\), x has \(4, 2, 8\)"),
        ((X, T, T, P.short()), "positions is torch.int16. Its dtypes: int64, int32"),
        ((X, T, T, P.to("meta")), "positions is on meta, x on cpu"),
        ((X, T, T, P + 7), "positions has 10, cos and sin have 10 rows. Give positions from 0 to rows - 1"),
        ((X, T, T, P - 1), "positions has -1, cos and sin have 10 rows"),
    ],
)
def test_what_is_undefined_is_refused_by_name(args: tuple[Any, ...], told: str) -> None:
    with pytest.raises(InvalidInput, match=f"rope: {told}"):
        ROPE.check((*args, "half", False))


def test_a_style_that_is_not_there_is_refused_with_those_that_are() -> None:
    with pytest.raises(InvalidInput, match="rope: style is 'neox'. There are: half, interleaved"):
        ROPE.check((X, T, T, P, "neox", False))


@pytest.mark.parametrize("position", [10, -1])
def test_plain_torch_refuses_a_position_out_of_range_in_later_calls_too(position: int) -> None:
    with kernelyard.use(rope="torch.eager"):
        ops.rope(X, T, T, P)
        with pytest.raises(InvalidInput, match="rope: a position is out of range, cos and sin have 10 rows"):
            ops.rope(X, T, T, torch.tensor([0, 1, 2, position]))


def test_tables_that_wait_for_a_gradient_are_refused() -> None:
    table = torch.ones(10, 4, requires_grad=True)
    with plain_torch():
        with pytest.raises(InvalidInput, match="rope: sin requires a gradient, and rope has one for x alone"):
            ops.rope(X, T, table, P)
        with torch.no_grad():
            assert ops.rope(X, T, table, P).shape == X.shape
