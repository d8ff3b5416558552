"""The contracts: references against torch in float64, gradients, tolerances that hold and that bite, and what every contract owes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional as F

from kernelyard.contracts import RMSNORM, SOFTMAX, VECTOR_ADD, plugin
from kernelyard.contracts.rows import EPSILON
from kernelyard.errors import InvalidInput
from kernelyard.registry.matrix import ABSENT, Point
from kernelyard.registry.op import Op
from tests.contracts.cases import HALF, dims, equal, gradcheck, inputs, outputs, typical, wide, within

OPS = plugin.ops
LLAMA, GEMMA = (("casting", "llama"),), (("offset", 1.0),)
ROW_OPS = [op for op in OPS if op.dims[0] != "batch" and "k" not in op.dims]
every_op = pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
every_row_op = pytest.mark.parametrize("op", ROW_OPS, ids=lambda op: op.name)


def eager(op: Op, args: tuple[Any, ...]) -> torch.Tensor:
    if op is VECTOR_ADD:
        return args[0] + args[1]
    if op is SOFTMAX:
        return torch.softmax(args[0], -1)
    x, w, eps, offset, casting = args
    if casting == "llama":
        normal = (x.float() * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + eps)).to(x.dtype)
        return normal * (w.float() + offset).to(x.dtype)
    return F.rms_norm(x.float(), (x.shape[-1],), w.float() + offset, eps).to(x.dtype)


# Meaning ----------------------------------------------------------------------------------------------


def test_references_equal_torch_in_float64() -> None:
    x, w, y = torch.randn(5, 33).double(), torch.randn(33).double(), torch.randn(5, 33).double()
    torch.testing.assert_close(VECTOR_ADD.reference(x, y), x + y, rtol=0, atol=0)
    torch.testing.assert_close(SOFTMAX.reference(x), torch.softmax(x, -1), rtol=0, atol=0)
    torch.testing.assert_close(RMSNORM.reference(x, w, 1e-6, 0.0, "fp32"), F.rms_norm(x, (33,), w, 1e-6))
    torch.testing.assert_close(RMSNORM.reference(x, None, 1e-6, 0.0, "fp32"), F.rms_norm(x, (33,), None, 1e-6))
    torch.testing.assert_close(RMSNORM.reference(x, w, 1e-6, 1.0, "fp32"), F.rms_norm(x, (33,), w + 1, 1e-6))


def test_eps_stands_inside_the_root() -> None:
    x = torch.full((1, 4), 1e-3).double()
    expected = x / torch.sqrt(torch.tensor(1e-6 + 1e-6).double())
    torch.testing.assert_close(RMSNORM.reference(x, None, 1e-6, 0.0, "fp32"), expected)


def test_a_row_of_all_minus_infinity_is_zero_and_its_gradient_is_not_nan() -> None:
    x = torch.randn(3, 5, dtype=torch.float64)
    x[1] = -torch.inf
    x[2, :4] = -torch.inf
    x.requires_grad_()
    y = SOFTMAX.reference(x)
    assert y[1].tolist() == [0.0] * 5 and y[2].tolist() == [0, 0, 0, 0, 1]
    torch.testing.assert_close(y[0], torch.softmax(x[0], -1))
    (dx,) = torch.autograd.grad(y.square().sum(), x)
    assert torch.isfinite(dx).all() and dx[1].tolist() == [0.0] * 5


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_a_row_with_nan_or_infinity_is_nan_as_in_torch_and_no_other_row_is(value: float) -> None:
    x = torch.randn(2, 5)
    x[0, 2] = value
    y = SOFTMAX.reference(x)
    assert y[0].isnan().all() and torch.isfinite(y[1]).all()


@every_row_op
@pytest.mark.parametrize(("rows", "cols"), [(0, 4), (4, 0), (0, 0)])
def test_inputs_without_elements_give_outputs_of_the_reference_s_shapes(op: Op, rows: int, cols: int) -> None:
    args = typical(op, rows, cols, "bfloat16")
    made, expected = op.empty(*args), outputs(op.reference(*wide(args, torch.float32)))
    assert [out.shape for out in made] == [one.shape for one in expected]
    assert {out.dtype for out in made} == {torch.bfloat16} and (made[0].numel() == 0 or op is VECTOR_ADD)


@every_op
def test_a_sum_over_no_rows_is_zero(op: Op) -> None:
    results = outputs(op.reference(*wide(typical(op, 0, 4))))
    assert all(not bool(result.any()) for result in results)


@every_op
def test_a_reference_leaves_its_arguments_alone_but_those_that_the_op_writes_into(op: Op) -> None:
    args = typical(op, 7, 129)
    before = [arg.clone() if isinstance(arg, torch.Tensor) else arg for arg in args]
    op.reference(*args)
    kept = [(arg, was) for argument, arg, was in zip(op.arguments, args, before, strict=True) if not argument.mutated]
    assert all(equal(arg, was) for arg, was in kept)


@every_op
def test_outputs_are_allocated_contiguous_and_meta_for_meta(op: Op) -> None:
    layout = "contiguous" if len(op.dims) == 1 or op not in ROW_OPS else "transposed"
    args = inputs(op, op.workload(Point(dims(op, 7, 130), "float32", layout)))
    made = op.empty(*args)
    assert len(made) == op.returns and all(out.is_contiguous() for out in made) and made[0].dtype == args[0].dtype
    meta = op.empty(*(arg.to("meta") if isinstance(arg, torch.Tensor) else arg for arg in args))
    assert all(one.is_meta and one.shape == out.shape for one, out in zip(meta, made, strict=True))


# Gradients --------------------------------------------------------------------------------------------

CASES = [
    pytest.param(VECTOR_ADD, (), id="vector_add"),
    pytest.param(SOFTMAX, (), id="softmax"),
    pytest.param(RMSNORM, (), id="rmsnorm"),
    pytest.param(RMSNORM, LLAMA, id="rmsnorm llama"),
    pytest.param(RMSNORM, GEMMA, id="rmsnorm gemma"),
]


@pytest.mark.parametrize(("op", "statics"), CASES)
def test_the_reference_has_the_derivative_of_its_differences(op: Op, statics: tuple[tuple[str, Any], ...]) -> None:
    assert gradcheck(op, typical(op, 3, 7, statics=statics), ("a", "b", "x", "w"))


def test_the_gradient_of_a_sum_is_a_copy_for_each_addend() -> None:
    assert VECTOR_ADD.gradient is not None
    dy = torch.randn(5)
    da, db = VECTOR_ADD.gradient.backward((), (dy,))
    assert torch.equal(da, dy) and torch.equal(db, dy) and len({t.data_ptr() for t in (da, db, dy)}) == 3


@every_op
def test_what_has_no_gradient_is_one_itself_or_says_forward_only(op: Op) -> None:
    assert (op.gradient is None) == (op.name.endswith("_backward") or "attention" in op.name)


# Tolerances -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("op", "statics"), CASES)
@pytest.mark.parametrize("dtype", ["float32", *HALF])
def test_torch_s_own_result_is_within_the_tolerance(op: Op, statics: tuple[tuple[str, Any], ...], dtype: str) -> None:
    for rows, cols in ((1, 1), (7, 129), (33, 1000), (3, 32768)):
        workload = op.workload(Point(dims(op, rows, cols), dtype, statics=statics))
        for seed in (0, 1):
            args = inputs(op, workload, seed)
            assert within(op, workload, eager(op, args), args), (rows, cols, seed)


@pytest.mark.parametrize("dtype", ["float32", *HALF])
@every_row_op
def test_a_tolerance_has_a_reason_and_is_no_wider_than_a_few_roundings(op: Op, dtype: str) -> None:
    whole = op.tolerance(op.workload(Point(dims(op, 16, 4096), dtype)))
    unit = {"float32": 2.0**-23, "bfloat16": 2.0**-7, "float16": 2.0**-10}[dtype]
    for i in range(op.returns):
        tolerance = whole.of(i)
        assert tolerance.reason and unit / 2 < tolerance.relative < (100 if dtype == "float32" else 2) * unit
        assert tolerance.absolute <= 96 * 2.0**-24, "typical results are of size 1"
        assert tolerance.absolute < 1e-7 or "cancel" in tolerance.reason


@pytest.mark.parametrize("dtype", EPSILON)
def test_a_rounding_is_half_a_unit_in_the_last_place(dtype: str) -> None:
    assert EPSILON[dtype] == torch.finfo(getattr(torch, dtype)).eps / 2


def summed_in_half(values: torch.Tensor) -> torch.Tensor:
    """The sum of rows with every partial sum rounded to float16."""
    total = torch.zeros(values.shape[:-1], dtype=torch.float16)
    for column in values.half().unbind(-1):
        total = total + column
    return total.unsqueeze(-1)


def test_a_sum_accumulated_in_float16_is_outside_the_tolerance() -> None:
    workload = RMSNORM.workload(Point((16, 1024), "float16"))
    x, w, eps, *rest = args = inputs(RMSNORM, workload)
    mean = summed_in_half(x * x).float() / 1024
    assert not within(RMSNORM, workload, (x.float() * torch.rsqrt(mean + eps) * w.float()).half(), (x, w, eps, *rest))
    assert within(RMSNORM, workload, eager(RMSNORM, args), args)

    workload = SOFTMAX.workload(Point((16, 1024), "float16"))
    (x,) = inputs(SOFTMAX, workload)
    exponentials = torch.exp(x.float() - x.float().amax(-1, keepdim=True))
    assert not within(SOFTMAX, workload, (exponentials / summed_in_half(exponentials).float()).half(), (x,))


@pytest.mark.parametrize(
    "wrong",
    [
        lambda x, w, eps: F.rms_norm(x, (x.shape[-1],), None, eps),
        lambda x, w, eps: F.rms_norm(x, (x.shape[-1],), w, 1e-3),
        lambda x, w, eps: x * torch.rsqrt(x[..., :-1].square().mean(-1, keepdim=True) + eps) * w,
        lambda x, w, eps: x * torch.rsqrt(x.square().sum(-1, keepdim=True) / (x.shape[-1] + 1) + eps) * w,
        lambda x, w, eps: (x.bfloat16().float() * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)) * w,
    ],
    ids=["weight ignored", "another eps", "last column left out", "divided by one more", "rounded on the way"],
)
def test_an_rmsnorm_that_is_wrong_is_outside_the_tolerance(wrong: Any) -> None:
    workload = RMSNORM.workload(Point((7, 129), "float32"))
    x, w, eps, *_ = args = inputs(RMSNORM, workload)
    assert not within(RMSNORM, workload, wrong(x, w, eps), args)


def test_float16_squares_and_sums_past_its_range_are_right() -> None:
    """300^2 and a sum of 70 000 ones are past 65504."""
    workload = RMSNORM.workload(Point((2, 4096), "float16"))
    args = (torch.full((2, 4096), 300.0, dtype=torch.float16), torch.ones(4096, dtype=torch.float16), 1e-6, 0.0, "fp32")
    assert RMSNORM.reference(*wide(args, torch.float32)).half().eq(1).all() and within(RMSNORM, workload, torch.ones(2, 4096).half(), args)
    zeros = torch.zeros(1, 70_000, dtype=torch.float16)
    expected = torch.full((1, 70_000), 1 / 70_000).half()
    assert within(SOFTMAX, SOFTMAX.workload(Point((1, 70_000), "float16")), expected, (zeros,))


def test_llama_s_casting_and_gemma_s_offset_are_what_their_models_do() -> None:
    x, w = torch.randn(8, 256).bfloat16(), (torch.rand(256) + 0.5).bfloat16()
    normal = x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-6)
    llama, gemma = w * normal.to(x.dtype), (normal * (1.0 + w.float())).to(x.dtype)
    asked = {statics: RMSNORM.workload(Point((8, 256), "bfloat16", statics=statics)) for statics in (LLAMA, GEMMA, ())}
    assert within(RMSNORM, asked[LLAMA], llama, (x, w, 1e-6, 0.0, "llama"))
    assert within(RMSNORM, asked[GEMMA], gemma, (x, w, 1e-6, 1.0, "fp32"))
    assert not within(RMSNORM, asked[()], llama, (x, w, 1e-6, 0.0, "fp32")), "two roundings are not one"


# What every contract owes -----------------------------------------------------------------------------


@every_op
def test_typical_inputs_are_the_workload_s_repeatable_and_valid(op: Op) -> None:
    points = dict.fromkeys(op.matrix("smoke", "cpu").points)
    for point in points:
        workload = op.workload(point)
        args = inputs(op, workload)
        op.check(args)
        assert op.workload_of(args).key() == workload.key()
        assert all(map(equal, args, inputs(op, workload)))


@every_op
def test_the_matrices_hold_the_sizes_they_owe(op: Op) -> None:
    names = {"correctness", "smoke", "performance/cpu", "performance/cuda", "held_out/cpu", "held_out/cuda"}
    assert names <= set(op.matrices)
    correctness = op.matrix("correctness", "cpu").points
    assert {point.dtype for point in correctness} == {"float32", "bfloat16", "float16"} == set(op.dtypes)
    assert any(point.dims[0] == 0 for point in correctness) and "offset" in {point.layout for point in correctness}
    for device in ("cpu", "cuda"):
        held, tuned = (set(op.matrix(name, device).points) for name in ("held_out", "performance"))
        assert held and not held & tuned


def test_the_correctness_matrix_of_rmsnorm_has_its_other_meanings() -> None:
    statics = {point.statics for point in RMSNORM.matrix("correctness", "cpu").points}
    assert {LLAMA, GEMMA, (("w", ABSENT),), ()} <= statics


def test_declaring_all_ops_makes_few_points_because_ops_share_them() -> None:
    """Each costs some microseconds whenever a command starts."""
    points = {id(point) for op in OPS for matrix in op.matrices.values() for point in matrix}
    assert len(points) < 1800 < sum(len(matrix) for op in OPS for matrix in op.matrices.values())


@pytest.mark.parametrize(
    ("op", "dims", "bytes_moved"),
    [(VECTOR_ADD, (1024,), 3 * 1024 * 2), (SOFTMAX, (16, 64), 2 * 16 * 64 * 2), (RMSNORM, (16, 64), 2 * 16 * 64 * 2 + 64 * 2)],
)
def test_the_cost_is_what_must_move(op: Op, dims: tuple[int, ...], bytes_moved: int) -> None:
    cost = op.cost(op.workload(Point(dims, "bfloat16")))
    assert cost.bytes == bytes_moved and cost.flops > 0


@pytest.mark.parametrize(
    ("op", "args", "told"),
    [
        (VECTOR_ADD, (torch.ones(2), torch.ones(3)), "nothing is broadcast"),
        (VECTOR_ADD, (torch.ones(2), torch.ones(2).half()), "Both must be one of"),
        (VECTOR_ADD, (torch.ones(2), torch.ones(2, device="meta")), "a is on cpu, b on meta"),
        (SOFTMAX, (torch.ones(()),), "no dimensions"),
        (SOFTMAX, (torch.ones(2).double(),), "torch.float64. Its dtypes"),
        (RMSNORM, (torch.ones(2, 4), torch.ones(2, 4), 1e-6, 0.0, "fp32"), r"w has shape \(2, 4\), x has 4 columns"),
        (RMSNORM, (torch.ones(2, 4), torch.ones(4).int(), 1e-6, 0.0, "fp32"), "w is torch.int32"),
        (RMSNORM, (torch.ones(2, 4), None, float("nan"), 0.0, "fp32"), "eps is nan"),
        (RMSNORM, (torch.ones(2, 4), torch.ones(4, device="meta"), 1e-6, 0.0, "fp32"), "w is on meta, x on cpu"),
        (RMSNORM, (torch.ones(2, 4), None, -1e-6, 0.0, "fp32"), "eps is -1e-06"),
        (RMSNORM, (torch.ones(2, 4, dtype=torch.complex64), None, 1e-6, 0.0, "fp32"), "x is torch.complex64"),
        (RMSNORM, (torch.ones(2, 4), None, 1e-6, 0.0, "torch"), "casting is 'torch'"),
    ],
)
def test_what_a_contract_leaves_undefined_is_refused(op: Op, args: tuple[Any, ...], told: str) -> None:
    with pytest.raises(InvalidInput, match=told):
        op.check(args)
