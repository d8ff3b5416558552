"""swiglu and its gradient, from two tensors and packed: the same values, one rounding, what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional as F

from kernelyard import ops
from kernelyard.contracts import SWIGLU, SWIGLU_BACKWARD
from kernelyard.errors import InvalidInput
from kernelyard.registry.matrix import ABSENT, Point
from tests.contracts.cases import HALF, derivative, gradcheck, inputs, plain_torch, typical, wide, within

PACKED = (("b", ABSENT),)
FORMS = pytest.mark.parametrize("statics", [(), PACKED], ids=["two tensors", "packed"])


def test_the_reference_is_torch_s_silu_times_the_other_factor_however_they_come() -> None:
    a, b = torch.randn(5, 33).double(), torch.randn(5, 33).double()
    torch.testing.assert_close(SWIGLU.reference(a, b), F.silu(a) * b)  # torch rounds a vector's end otherwise than its middle
    torch.testing.assert_close(SWIGLU.reference(torch.cat((a, b), -1), None), F.silu(a) * b)


@FORMS
def test_the_reference_has_the_derivative_of_its_differences(statics: Any) -> None:
    assert gradcheck(SWIGLU, typical(SWIGLU, 3, 7, statics=statics), ("a", "b"))


@FORMS
def test_the_gradient_s_reference_is_autograd_s_through_swiglu_s(statics: Any) -> None:
    dy, *factors = wide(typical(SWIGLU_BACKWARD, 5, 33, statics=statics))
    given = [factor for factor in factors if factor is not None]
    expected = derivative(lambda a, b=None: SWIGLU.reference(a, b), given, (dy,))
    da, db = SWIGLU_BACKWARD.reference(dy, *factors)
    torch.testing.assert_close((da, db)[: len(given)], expected)
    assert statics == () or db.shape == (0,)


@FORMS
def test_autograd_through_swiglu_gives_the_reference_s(statics: Any) -> None:
    dy, *factors = typical(SWIGLU_BACKWARD, 5, 33, statics=statics)
    given = [factor for factor in factors if factor is not None]
    with plain_torch():
        got = derivative(ops.swiglu, given, (dy,))
    torch.testing.assert_close(got, SWIGLU_BACKWARD.reference(*wide((dy, *factors)))[: len(given)], check_dtype=False, rtol=1e-5, atol=1e-6)


def test_a_packed_workload_counts_the_columns_of_the_result_and_says_what_is_absent() -> None:
    workload = SWIGLU.workload(Point((7, 129), "bfloat16", statics=PACKED))
    assert workload["a"].shape == (7, 258) and not workload.has("b")
    assert workload.dims == (("rows", 7), ("cols", 129)) and workload.label() == "7x129 bf16 without b"
    assert SWIGLU.workload_of((torch.empty(7, 258).bfloat16(), None)).key() == workload.key()


@FORMS
def test_the_cost_is_the_same_packed(statics: Any) -> None:
    point = Point((16, 64), "bfloat16", statics=statics)
    assert SWIGLU.cost(SWIGLU.workload(point)).bytes == 3 * 16 * 64 * 2
    assert SWIGLU_BACKWARD.cost(SWIGLU_BACKWARD.workload(point)).bytes == 5 * 16 * 64 * 2


@pytest.mark.parametrize("dtype", ["float32", *HALF])
@FORMS
def test_float32_rounded_once_is_within_the_tolerance(dtype: str, statics: Any) -> None:
    for dims in ((1, 1), (7, 129), (3, 32768)):
        workload = SWIGLU.workload(Point(dims, dtype, statics=statics))
        args = inputs(SWIGLU, workload)
        assert within(SWIGLU, workload, SWIGLU.reference(*wide(args, torch.float32)).to(args[0].dtype), args), dims
        workload = SWIGLU_BACKWARD.workload(Point(dims, dtype, statics=statics))
        args = inputs(SWIGLU_BACKWARD, workload)
        got = tuple(grad.to(args[0].dtype) for grad in SWIGLU_BACKWARD.reference(*wide(args, torch.float32)))
        assert within(SWIGLU_BACKWARD, workload, got, args), dims


@pytest.mark.parametrize("dtype", HALF)
def test_silu_rounded_before_the_product_is_outside_the_tolerance(dtype: str) -> None:
    workload = SWIGLU.workload(Point((33, 1000), dtype))
    a, b = args = inputs(SWIGLU, workload)
    assert not within(SWIGLU, workload, F.silu(a) * b, args)


def test_factors_exchanged_or_a_derivative_of_the_sigmoid_left_out_are_outside_the_tolerance() -> None:
    workload = SWIGLU.workload(Point((7, 129), "bfloat16"))
    a, b = args = inputs(SWIGLU, workload)
    assert not within(SWIGLU, workload, (F.silu(b.float()) * a).bfloat16(), args)
    workload = SWIGLU_BACKWARD.workload(Point((7, 129), "bfloat16"))
    dy, a, b = args = inputs(SWIGLU_BACKWARD, workload)
    db = SWIGLU_BACKWARD.reference(*wide(args))[1].bfloat16()
    assert not within(SWIGLU_BACKWARD, workload, ((dy * b * torch.sigmoid(a.float())).bfloat16(), db), args)


def test_large_values_are_finite_where_the_result_is() -> None:
    large = torch.tensor([[-3e38, -100.0, 100.0, 3e38]])
    assert SWIGLU.reference(large, torch.ones(1, 4)).tolist() == [[0.0, pytest.approx(0.0, abs=1e-37), 100.0, pytest.approx(3e38)]]
    da, db = SWIGLU_BACKWARD.reference(torch.ones(1, 4), large, torch.ones(1, 4))
    assert torch.isfinite(da).all() and torch.isfinite(db).all()


A, B = torch.ones(2, 4), torch.ones(2, 3)


@pytest.mark.parametrize(
    ("op", "args", "told"),
    [
        (SWIGLU, (A, B), r"swiglu: b has shape \(2, 3\), a has \(2, 4\)"),
        (SWIGLU, (A, A.half()), "swiglu: b is torch.float16, a is torch.float32"),
        (SWIGLU, (A, A.to("meta")), "swiglu: b is on meta, a on cpu"),
        (SWIGLU, (B, None), "swiglu: a has 3 columns and there is no b"),
        (SWIGLU, (torch.ones(()), None), "swiglu: a has no dimensions"),
        (SWIGLU, (A.int(), A.int()), "swiglu: a is torch.int32"),
        (SWIGLU_BACKWARD, (B, A, A), r"swiglu_backward: dy has shape \(2, 3\). Give it in the shape of swiglu's result, \(2, 4\)"),
        (SWIGLU_BACKWARD, (A, A, None), r"swiglu_backward: dy has shape \(2, 4\). Give it in the shape of swiglu's result, \(2, 2\)"),
        (SWIGLU_BACKWARD, (A.half(), A, A), "swiglu_backward: dy is torch.float16, a is torch.float32"),
        (SWIGLU_BACKWARD, (A.to("meta"), A, A), "swiglu_backward: dy is on meta, a on cpu"),
    ],
)
def test_what_is_undefined_is_refused_by_name(op: Any, args: tuple[Any, ...], told: str) -> None:
    with pytest.raises(InvalidInput, match=told):
        op.check(args)
