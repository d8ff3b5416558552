"""matmul and linear_swiglu: what they mean, what tells a wrong one, what is refused, and gradients through the same op."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional as F

from kernelyard import ops
from kernelyard.contracts import LINEAR_SWIGLU, MATMUL
from kernelyard.contracts.matmul_points import EPILOGUES, LAYOUTS
from kernelyard.errors import InvalidInput, UsageError
from kernelyard.registry.matrix import Point
from tests.contracts.cases import derivative, gradcheck, inputs, plain_torch, wide, within

SMALL = (1, 3, 5, 7)


def typical(dims: tuple[int, ...] = SMALL, dtype: str = "float32", statics: Any = (), layout: str = "contiguous") -> tuple[Any, ...]:
    return inputs(MATMUL, MATMUL.workload(Point(dims, dtype, layout, statics)))


def test_the_parts_come_in_the_order_of_the_formula() -> None:
    a, b, bias, residual = (torch.randn(*shape).double() for shape in ((3, 7), (7, 5), (5,), (3, 5)))
    expected = F.gelu(a @ b + bias) * 0.5 + residual
    torch.testing.assert_close(MATMUL.reference(a, b, bias, residual, 0.5, "gelu", "ieee"), expected)


@pytest.mark.parametrize("dims", [(1, 257, 129, 129), (1, 65, 127, 4096)], ids=str)
def test_factors_cut_to_tf32_are_within_the_tolerance_and_come_to_the_norm_that_it_tells(dims: tuple[int, ...]) -> None:
    tf32 = MATMUL.workload(Point(dims, "float32", statics=(("precision", "tf32"),)))
    a, b, *rest = inputs(MATMUL, tf32)
    want, got = a.double() @ b.double(), cut(a) @ cut(b)
    assert within(MATMUL, tf32, got, (a, b, *rest))
    assert float((got - want).norm() / want.norm()) == pytest.approx(MATMUL.tolerance(tf32).factors, rel=0.1)


def cut(x: torch.Tensor) -> torch.Tensor:
    """What Hopper's tensor cores read of a float32 in shared memory: the last 13 of its 23 bits of mantissa are left out."""
    return (x.view(torch.int32) & ~0x1FFF).view(torch.float32).double()


def test_without_a_product_the_epilogue_is_left() -> None:
    a, b, bias, residual = torch.ones(2, 0), torch.ones(0, 3), torch.tensor([-1.0, 0.0, 2.0]), torch.ones(2, 3)
    with plain_torch():
        out = ops.matmul(a, b, bias, residual, 2.0, activation="relu")
    assert out.tolist() == [[1.0, 1.0, 5.0]] * 2


@pytest.mark.parametrize("statics", [(), *EPILOGUES[:-1]], ids=str)
@pytest.mark.parametrize("dims", [SMALL, (2, 3, 5, 4)], ids=str)
def test_the_reference_has_the_derivative_of_its_differences(statics: Any, dims: tuple[int, ...]) -> None:
    if any("relu" in pair for pair in statics):
        pytest.skip("a corner has no difference")
    assert gradcheck(MATMUL, typical(dims, statics=statics), ("a", "b", "bias", "residual"))


@pytest.mark.parametrize("statics", [(), *EPILOGUES[:-1]], ids=str)
@pytest.mark.parametrize("dims", [SMALL, (2, 3, 5, 4)], ids=str)
def test_autograd_gives_the_reference_s_gradient(statics: Any, dims: tuple[int, ...]) -> None:
    a, b, bias, residual, *rest = typical(dims, statics=statics)
    tensors, places = zip(*((t, i) for i, t in enumerate((a, b, bias, residual)) if t is not None), strict=True)

    def called(function: Any) -> Any:
        def call(*some: Any) -> Any:
            args: list[Any] = [None] * 4
            for place, tensor in zip(places, some, strict=True):
                args[place] = tensor
            return function(*args, *rest[:1], **dict(zip(("activation", "precision"), rest[1:], strict=True)))

        return call

    dy = torch.randn(MATMUL.empty(a, b, bias, residual, *rest)[0].shape)
    expected = derivative(called(lambda *args, **more: MATMUL.reference(*args, more["activation"], "ieee")), wide(tensors), (dy.double(),))
    with plain_torch():
        got = derivative(called(ops.matmul), tensors, (dy,))
    torch.testing.assert_close([g.double() for g in got], list(expected), rtol=1e-5, atol=1e-5)


def test_linear_swiglu_s_gradient_is_the_reference_s() -> None:
    x, w = inputs(LINEAR_SWIGLU, LINEAR_SWIGLU.workload(Point((3, 5, 7), "float32")))
    assert gradcheck(LINEAR_SWIGLU, (x, w), ("x", "w"))
    dy = torch.randn(3, 5)
    with plain_torch():
        got = derivative(ops.linear_swiglu, (x, w), (dy,))
    expected = derivative(LINEAR_SWIGLU.reference, wide((x, w)), (dy.double(),))
    torch.testing.assert_close([g.double() for g in got], list(expected), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("lead", [(), (0,), (2, 3), (2, 0)], ids=str)
@pytest.mark.parametrize(("n", "k"), [(5, 7), (0, 7), (5, 0)], ids=str)
def test_gradients_of_any_leading_dimensions_and_of_nothing(lead: tuple[int, ...], n: int, k: int) -> None:
    w = torch.randn(2 * n, k)
    for function, meaning, shape, cols in (
        (ops.linear_swiglu, LINEAR_SWIGLU.reference, lead, n),
        (lambda x, w: ops.matmul(x, w.mT), F.linear, (1, *lead), 2 * n),
    ):
        x, dy = torch.randn(*shape, k), torch.randn(*shape, cols)
        with plain_torch():
            got = derivative(function, (x, w), (dy,))
        torch.testing.assert_close(got, derivative(meaning, (x, w), (dy,)), rtol=1e-5, atol=1e-5)


def in_blocks(a: torch.Tensor, b: torch.Tensor, block: int, dtype: torch.dtype) -> torch.Tensor:
    """A product whose partial sums over blocks of k are added in `dtype`."""
    total = torch.zeros(a.shape[0], b.shape[1], dtype=dtype)
    for start in range(0, a.shape[1], block):
        total = total + (a[:, start : start + block].float() @ b[start : start + block].float()).to(dtype)
    return total


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_long_sum_accumulated_in_half_precision_is_outside_the_tolerance(dtype: str) -> None:
    workload = MATMUL.workload(Point((1, 16, 32, 16384), dtype))
    args = inputs(MATMUL, workload)
    a, b = args[:2]
    assert within(MATMUL, workload, in_blocks(a, b, 16, torch.float32).to(a.dtype), args)
    assert not within(MATMUL, workload, in_blocks(a, b, 16, a.dtype), args)


def test_tensor_cores_rounding_is_granted_where_it_was_asked_for() -> None:
    def rounded(x: torch.Tensor) -> torch.Tensor:
        return (x.view(torch.int32) + 0x1000 & ~0x1FFF).view(torch.float32)

    for statics, granted in (((), False), (EPILOGUES[-1], True)):
        workload = MATMUL.workload(Point((1, 64, 64, 1000), "float32", statics=statics))
        a, b, *rest = inputs(MATMUL, workload)
        assert within(MATMUL, workload, (rounded(a).double() @ rounded(b).double()).float(), (a, b, *rest)) == granted


@pytest.mark.parametrize(
    "wrong",
    [
        lambda a, b, bias, residual, scale: F.gelu(a @ b, approximate="tanh") * scale + residual,
        lambda a, b, bias, residual, scale: F.gelu(a @ b + bias, approximate="tanh") + residual,
        lambda a, b, bias, residual, scale: (F.gelu(a @ b + bias, approximate="tanh") + residual) * scale,
        lambda a, b, bias, residual, scale: F.gelu(a @ b + bias) * scale + residual,
        lambda a, b, bias, residual, scale: F.gelu(a[:, :-1] @ b[:-1] + bias, approximate="tanh") * scale + residual,
    ],
    ids=["bias left out", "scale left out", "residual scaled", "the other gelu", "last of k left out"],
)
def test_a_matmul_that_is_wrong_is_outside_the_tolerance(wrong: Any) -> None:
    workload = MATMUL.workload(Point((1, 33, 65, 129), "float32", statics=EPILOGUES[2]))
    args = inputs(MATMUL, workload)
    assert not within(MATMUL, workload, wrong(*args[:5]), args)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_are_what_their_names_say(layout: str) -> None:
    a, b, *_ = typical((2, 3, 5, 7), layout=layout)
    assert (a.stride(-1) == 1) == (layout not in ("a_transposed", "both_transposed"))
    assert (b.stride(-1) == 1) == (layout not in ("linear", "both_transposed"))
    assert (a.stride(-2) == 10 and b.stride(-2) == 8) == (layout == "gapped")
    assert (a.data_ptr() % 16 != 0 and b.data_ptr() % 16 != 0) == (layout == "offset")


def test_leading_dimensions_are_rows_where_b_has_none() -> None:
    weight = torch.randn(5, 7)
    one, other = (MATMUL.workload_of(MATMUL.bind((torch.randn(*lead, 7), weight.T), {})) for lead in ((2, 3), (6,)))
    assert one.key() == other.key() and one.dim("m") == 6 and one.dim("batch") == 1
    batched = MATMUL.workload_of(MATMUL.bind((torch.randn(2, 3, 7), weight.T.expand(2, 7, 5)), {}))
    assert (batched.dim("batch"), batched.dim("m")) == (2, 3)


def test_a_shape_may_leave_the_batch_out() -> None:
    assert MATMUL.parse_shape("16x4096x512") == (1, 16, 4096, 512)
    assert MATMUL.parse_shape("2x16x4096x512") == (2, 16, 4096, 512)
    with pytest.raises(UsageError, match=r"\[batch\]xmxnxk"):
        MATMUL.parse_shape("16x4096")


@pytest.mark.parametrize(
    ("args", "told"),
    [
        ((torch.ones(2, 3), torch.ones(4, 5)), r"a has shape \(2, 3\), b \(4, 5\)"),
        ((torch.ones(3), torch.ones(3, 5)), "Give a as"),
        ((torch.ones(2, 2, 3), torch.ones(3, 3, 5)), "the leading sizes of a"),
        ((torch.ones(2, 3), torch.ones(3, 5).half()), "b is torch.float16, a is torch.float32"),
        ((torch.ones(2, 3), torch.ones(3, 5), torch.ones(4)), r"bias has shape \(4,\)"),
        ((torch.ones(2, 3), torch.ones(3, 5), None, torch.ones(5)), r"residual has shape \(5,\)"),
        ((torch.ones(2, 3).int(), torch.ones(3, 5).int()), "a is torch.int32"),
        ((torch.ones(2, 3), torch.ones(3, 5, device="meta")), "b is on meta, a on cpu"),
    ],
)
def test_what_the_contract_leaves_undefined_is_refused(args: tuple[Any, ...], told: str) -> None:
    with pytest.raises(InvalidInput, match=told):
        ops.matmul(*args)


def test_names_that_are_not_known_are_refused_with_those_that_are() -> None:
    for more, told in (({"activation": "tanh"}, "none, relu, gelu"), ({"precision": "fp8"}, "ieee, tf32")):
        with pytest.raises(InvalidInput, match=told):
            ops.matmul(torch.ones(2, 3), torch.ones(3, 2), **more)
    with pytest.raises(InvalidInput, match=r"Give w as \(2 \* n, k\)"):
        ops.linear_swiglu(torch.ones(2, 3), torch.ones(5, 3))
