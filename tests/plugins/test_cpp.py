"""The C++ kernels of rows keep their contracts, whatever the config, layout, dtype and values; see test_cpp_products for the others."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from kernelyard.contracts import plugin as contracts
from kernelyard.errors import BuildFailed
from kernelyard.plugins.cpp import plugin as cpp
from kernelyard.plugins.cpp import toolchain
from kernelyard.plugins.cpp.probe import available
from kernelyard.registry.backend import Executable
from kernelyard.registry.kernel import Kernel
from kernelyard.registry.op import Op, Point
from kernelyard.registry.spec import Config, Workload

pytestmark = pytest.mark.skipif(not available("cpu"), reason=available("cpu").reason)

OPS = {op.name: op for op in contracts.ops}
RMSNORM, SOFTMAX, VECTOR_ADD = OPS["rmsnorm"], OPS["softmax"], OPS["vector_add"]
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
NAN, INF = float("nan"), float("inf")
ROW_KERNELS = [k for k in cpp.plugin.kernels if OPS[k.op].dims[0] != "batch" and "k" not in OPS[k.op].dims]
EVERY = pytest.mark.parametrize("kernel", ROW_KERNELS, ids=lambda k: f"{k.op}-{k.name}")
SOFTMAXES = pytest.mark.parametrize("kernel", [k for k in cpp.plugin.kernels if k.op == "softmax"], ids=lambda k: k.name)


def build(kernel: Kernel, args: tuple[Any, ...], config: Config | None = None) -> Executable:
    op = OPS[kernel.op]
    workload = op.workload_of(args)
    assert kernel.support.fits(workload)
    chosen = config or kernel.space.default_for(workload)
    assert kernel.space.allows(chosen, workload)
    return cpp.CPP.builder().build(op, kernel, workload, chosen)


def outputs(kernel: Kernel, args: tuple[Any, ...], config: Config | None = None) -> tuple[torch.Tensor, ...]:
    """The outputs, written over NaN between guards that must survive; inputs must too."""
    before = [a.clone() if isinstance(a, torch.Tensor) else a for a in args]
    guarded = [torch.full((like.numel() + 129,), 123.0, dtype=like.dtype) for like in OPS[kernel.op].empty(*args)]
    outs = tuple(g[65 : 65 + like.numel()].view(like.shape) for g, like in zip(guarded, OPS[kernel.op].empty(*args), strict=True))
    for out in outs:
        out.fill_(NAN)
    into = build(kernel, args, config).into
    assert into is not None
    into(outs, *args)
    for g in guarded:
        assert bool((g[:65] == 123).all() and (g[-64:] == 123).all()), "stored outside an output"
    for a, b in zip(args, before, strict=True):
        assert not isinstance(a, torch.Tensor) or torch.equal(a.nan_to_num(), b.nan_to_num()), "changed an input"
    return outs


def run(kernel: Kernel, args: tuple[Any, ...], config: Config | None = None) -> torch.Tensor:
    """The only output."""
    (out,) = outputs(kernel, args, config)
    return out


def expected(op: Op, args: tuple[Any, ...]) -> tuple[torch.Tensor, ...]:
    wide = [a.double() if isinstance(a, torch.Tensor) and a.is_floating_point() else a for a in args]
    result = op.reference(*wide)
    return result if isinstance(result, tuple) else (result,)


def check(kernel: Kernel, args: tuple[Any, ...], config: Config | None = None) -> None:
    op = OPS[kernel.op]
    tolerance = op.tolerance(op.workload_of(args))
    for i, (out, right) in enumerate(zip(outputs(kernel, args, config), expected(op, args), strict=True)):
        told = lambda m: f"{config}: {m}"  # noqa: E731
        of = tolerance.of(i)
        torch.testing.assert_close(out.double(), right, rtol=of.relative, atol=of.absolute, equal_nan=True, msg=told)


def typical(op: Op, dims: tuple[int, ...], dtype: torch.dtype = torch.float32) -> tuple[Any, ...]:
    """The contract's own inputs at these sizes."""
    return op.inputs(op.workload(Point(dims, str(dtype).removeprefix("torch."))), torch.Generator().manual_seed(0))


def sized(op: Op, rows: int, cols: int) -> tuple[int, ...]:
    """Sizes of an op of about this many rows and columns: rope has heads, vector_add no rows."""
    return {"rope": (rows, 3, cols // 2 * 2), "vector_add": (rows * cols,)}.get(op.name, (rows, cols))


def smoke(kernel: Kernel) -> Iterator[tuple[Any, ...]]:
    op = OPS[kernel.op]
    for point in op.matrix("smoke", "cpu").points:
        workload = op.workload(point)
        if kernel.support.fits(workload):
            yield op.inputs(workload, torch.Generator().manual_seed(0))


@EVERY
def test_agrees_with_the_reference_over_the_smoke_matrix(kernel: Kernel) -> None:
    for args in smoke(kernel):
        check(kernel, args)


@EVERY
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_config_is_right_on_a_ragged_shape(kernel: Kernel, dtype: torch.dtype) -> None:
    op = OPS[kernel.op]
    args = typical(op, sized(op, 67, 333), dtype)
    for config in kernel.space.configs(op.workload_of(args)):
        check(kernel, args, config)


@EVERY
def test_the_number_of_threads_does_not_change_a_bit_of_what_belongs_to_a_row(kernel: Kernel) -> None:
    op = OPS[kernel.op]
    args = typical(op, sized(op, 37, 1000))
    config = {**kernel.space.default_for(op.workload_of(args)), "threads": 1}
    alone = outputs(kernel, args, config)
    several = [{"threads": 3}, {"threads": 3, "rows_per_task": 2}]  # outside every space, so that it means something on any machine
    for change in several if "rows_per_task" in config else several[:1]:
        many = cpp.CPP.builder().build(op, kernel, op.workload_of(args), {**config, **change}).call(*args)
        together = many if isinstance(many, tuple) else (many,)
        assert torch.equal(alone[0], together[0])
        if "rows_per_task" not in config:  # sums over rows: another order with other threads, but in each the same every time
            again = cpp.CPP.builder().build(op, kernel, op.workload_of(args), {**config, **change}).call(*args)
            assert torch.equal(together[1], again[1])


@pytest.mark.parametrize("casting", ["fp32", "llama"])
@pytest.mark.parametrize(("dtype", "weight"), list(itertools.product(DTYPES, (None, *DTYPES))), ids=str)
@pytest.mark.parametrize("offset", [0.0, 1.0])
def test_rmsnorm_takes_any_weight_offset_and_casting(casting: str, dtype: torch.dtype, weight: torch.dtype | None, offset: float) -> None:
    w = None if weight is None else torch.randn(130).to(weight)
    check(cpp.RMSNORM, (torch.randn(5, 130).to(dtype), w, 1e-5, offset, casting))


def test_llama_casting_rounds_where_hugging_face_does() -> None:
    x, w = torch.randn(9, 512).bfloat16(), torch.randn(512).bfloat16()
    normal = x.float() * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + 1e-6)
    hugging_face, once = w * normal.bfloat16(), (normal * w.float()).bfloat16()
    assert not torch.equal(hugging_face, once)
    assert torch.equal(run(cpp.RMSNORM, (x, w, 1e-6, 0.0, "llama")), hugging_face)
    assert torch.equal(run(cpp.RMSNORM, (x, w, 1e-6, 0.0, "fp32")), once)


def test_rmsnorm_has_eps_inside_the_root_and_squares_beyond_half_precision() -> None:
    check(cpp.RMSNORM, (torch.full((2, 64), 1e-3), torch.ones(64), 1e-2, 0.0, "fp32"))
    half = torch.full((2, 4096), 300.0, dtype=torch.float16)  # 300^2 is no float16
    assert bool((run(cpp.RMSNORM, (half, torch.ones(4096).half(), 1e-6, 0.0, "fp32")) == 1).all())


def test_rmsnorm_keeps_nan_and_infinity_to_their_rows() -> None:
    x = torch.randn(4, 100)
    x[1, 7], x[2, 99] = NAN, INF
    out = run(cpp.RMSNORM, (x, torch.ones(100), 1e-6, 0.0, "fp32"))
    assert bool(out[1].isnan().all()) and bool(out[[0, 3]].isfinite().all())
    assert bool(out[2, 99].isnan()) and bool((out[2, :99] == 0).all())


@pytest.mark.parametrize("cols", [1, 3, 15, 17, 769, 1025, 65537, 131072])
def test_rmsnorm_reads_tails_and_wide_rows_whole(cols: int) -> None:
    for dtype in DTYPES:
        x = torch.ones(2, cols).to(dtype)
        x[:, -1] = 8.0  # dropped or counted twice, it changes every element
        check(cpp.RMSNORM, (x, torch.ones(cols).to(dtype), 1e-6, 0.0, "fp32"))


@EVERY
def test_leading_dimensions_may_be_many_strided_or_broadcast(kernel: Kernel) -> None:
    if kernel.op in ("vector_add", "rope"):
        pytest.skip("vector_add takes contiguous tensors only, and says so; rope has a test of its own")
    op = OPS[kernel.op]
    base = torch.randn(6, 5, 4, 40)
    views = (base, base[::2, 1:, :, :33], base.permute(2, 0, 1, 3), base[:, :1].expand(6, 9, 4, 40), base[0, 0, 0], base[0, 0, :0])
    for x in views:
        like = typical(op, (1, x.shape[-1]))
        check(kernel, tuple(x if isinstance(a, torch.Tensor) and a.dim() == 2 else a for a in like))


@SOFTMAXES
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_softmax_of_masked_nan_and_infinite_rows(kernel: Kernel, dtype: torch.dtype) -> None:
    for cols in (3, 40, 5000):
        x = torch.randn(7, cols)
        x[0] = -INF
        x[1] = -INF
        x[1, 2] = 5.0
        x[2, 1] = NAN
        x[3, 0] = INF
        x[4] = -INF
        x[4, 1] = NAN
        x[5] = NAN
        out = run(kernel, (x.to(dtype),))
        assert bool((out[0] == 0).all())
        assert out[1, 2] == 1 and out[1].sum() == 1
        assert bool(out[2:6].isnan().all())
        assert bool(out[6].isfinite().all())


@SOFTMAXES
def test_softmax_exponential_is_right_down_to_subnormal_results(kernel: Kernel) -> None:
    x = torch.linspace(-110, 0, 70001).view(1, -1)
    exact = torch.softmax(x.double(), -1)
    out = run(kernel, (x,)).double()
    assert bool(((out - exact).abs() <= 3e-7 * exact + 2 * 2.0**-149).all())
    lone = torch.tensor([[0.0, -87.4, -95.0, -103.0, -104.5, -1e30]])
    torch.testing.assert_close(run(kernel, (lone,)).double(), torch.softmax(lone.double(), -1), rtol=3e-7, atol=2.0**-149)


@SOFTMAXES
def test_softmax_finds_a_maximum_in_the_last_column_and_sums_beyond_half_precision(kernel: Kernel) -> None:
    for dtype in (torch.float32, torch.float16):
        x = torch.zeros(2, 102400, dtype=dtype)
        x[:, -1] = 50.0
        check(kernel, (x,))
    check(kernel, (torch.zeros(2, 70000, dtype=torch.float16),))  # the sum is no float16
    check(kernel, (torch.tensor([[3e38, -3e38, 1.0], [-3e38, -3.4e38, -3e38]]),))


def test_vector_add_propagates_nan_and_infinity_and_takes_nothing() -> None:
    a, b = torch.tensor([NAN, INF, INF, 3e38, -0.0, 1e-45]), torch.tensor([1.0, 1.0, -INF, 3e38, -0.0, 1e-45])
    out = run(cpp.VECTOR_ADD, (a, b))
    assert torch.equal(out.view(torch.int32)[3:], (a + b).view(torch.int32)[3:]) and bool(out[[0, 2]].isnan().all()) and out[1] == INF
    assert run(cpp.VECTOR_ADD, (torch.empty(0), torch.empty(0))).numel() == 0


def test_bfloat16_and_float16_round_to_nearest_even_as_torch_does() -> None:
    bits = torch.arange(-(2**31), 2**31, 70001, dtype=torch.int64).to(torch.int32)
    values = bits.view(torch.float32)
    for dtype in (torch.bfloat16, torch.float16):
        a = values.to(dtype)
        b = torch.flip(a, (0,)) * 0.37
        ours, theirs = run(cpp.VECTOR_ADD, (a, b)), (a.float() + b.float()).to(dtype)
        same = (ours.view(torch.int16) == theirs.view(torch.int16)) | (ours.isnan() & theirs.isnan())
        assert bool(same.all())


def test_a_tensor_that_requires_grad_is_read() -> None:
    x = torch.randn(3, 40, requires_grad=True)
    torch.testing.assert_close(run(cpp.SOFTMAX_ONEPASS, (x.detach(),)), build(cpp.SOFTMAX_ONEPASS, (x,)).call(x))


def test_wrong_arguments_are_refused_by_name() -> None:
    x, w = torch.randn(3, 40), torch.randn(40)
    into = build(cpp.RMSNORM, (x, w, 1e-6, 0.0, "fp32")).into
    assert into is not None
    with pytest.raises(ValueError, match="w must be"):
        into((torch.empty(3, 40),), x, torch.randn(39), 1e-6, 0.0, "fp32")
    with pytest.raises(ValueError, match="the output must have the shape and dtype of x"):
        into((torch.empty(3, 41),), x, w, 1e-6, 0.0, "fp32")
    with pytest.raises(ValueError, match="last dimension must be contiguous, its stride is 3"):
        into((torch.empty(40, 3).t(),), x, w, 1e-6, 0.0, "fp32")
    with pytest.raises(TypeError, match="float32, bfloat16 or float16"):
        into((torch.empty(3, 40).double(),), x.double(), w, 1e-6, 0.0, "fp32")
    with pytest.raises(TypeError, match="argument #1"):
        into((torch.empty(3, 40),), "x", w, 1e-6, 0.0, "fp32")


def test_layouts_outside_the_envelope_are_refused_with_the_reason() -> None:
    transposed = RMSNORM.workload_of((torch.randn(40, 3).t(), torch.randn(40), 1e-6, 0.0, "fp32"))
    assert "stride is 3" in cpp.RMSNORM.support.fits(transposed).reason
    gaps = torch.randn(8, 8)[:, :3]
    assert "must be contiguous" in cpp.VECTOR_ADD.support.fits(VECTOR_ADD.workload_of((gaps, gaps))).reason


def test_defaults_are_allowed_everywhere_and_small_work_stays_on_one_thread() -> None:
    for kernel in cpp.plugin.kernels:
        op = OPS[kernel.op]
        for matrix in ("correctness", "performance", "held_out"):
            for point in op.matrix(matrix, "cpu").points:
                workload = op.workload(point)
                answer = kernel.space.allows(kernel.space.default_for(workload), workload)
                assert answer, f"{kernel.name} {workload.key()}: {answer.reason}"
    first = RMSNORM.matrix("performance", "cpu").points[0]
    assert cpp.RMSNORM.space.default_for(RMSNORM.workload(first))["threads"] == 1


def returns_no_source(workload: Workload, config: Config) -> str:
    return "not a source"


def test_an_entry_that_returns_no_source_is_a_failed_build(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernelyard.plugins.cpp.vector_add.stream", returns_no_source)
    with pytest.raises(BuildFailed, match="returned str"):
        build(cpp.VECTOR_ADD, (torch.ones(1), torch.ones(1)))


def test_softmax_is_as_right_without_the_cpus_own_instructions(monkeypatch: pytest.MonkeyPatch) -> None:
    """The conversions, tails and scaling written for CPUs without AVX stand in for those of other architectures too."""
    kernel = cpp.SOFTMAX_ONEPASS
    portable = {**toolchain.capabilities(), "native": []}
    monkeypatch.setattr(toolchain, "capabilities", lambda: portable)
    for args in smoke(kernel):
        check(kernel, args)
    x = torch.randn(6, 37)
    x[0], x[1, 3], x[2, 3] = -INF, NAN, INF
    for dtype in DTYPES:
        out = run(kernel, (x.to(dtype),))
        assert bool((out[0] == 0).all() and out[1:3].isnan().all() and out[3:].isfinite().all())
    steep = torch.linspace(-110, 0, 5001).view(1, -1)
    torch.testing.assert_close(run(kernel, (steep,)).double(), torch.softmax(steep.double(), -1), rtol=3e-7, atol=2 * 2.0**-149)


# The gradients, and the ops with two results -----------------------------------------------------------


@pytest.mark.parametrize(("dtype", "weight"), list(itertools.product(DTYPES, (None, *DTYPES))), ids=str)
@pytest.mark.parametrize("kernel", [cpp.RMSNORM_BACKWARD, cpp.ADD_RMSNORM, cpp.ADD_RMSNORM_BACKWARD], ids=lambda k: k.op)
def test_norms_take_any_weight_offset_and_casting(kernel: Kernel, dtype: torch.dtype, weight: torch.dtype | None) -> None:
    like = typical(OPS[kernel.op], (5, 130), dtype)
    w = None if weight is None else torch.randn(130).to(weight)
    for offset, casting in ((0.0, "fp32"), (1.0, "fp32"), (0.0, "llama"), (1.0, "llama")):
        check(kernel, (*like[:-4], w, 0.1, offset, casting))


@pytest.mark.parametrize("kernel", [cpp.RMSNORM_BACKWARD, cpp.ADD_RMSNORM_BACKWARD], ids=lambda k: k.op)
def test_a_weight_gets_a_gradient_of_zeros_from_no_rows(kernel: Kernel) -> None:
    like = typical(OPS[kernel.op], (0, 40))
    assert bool((outputs(kernel, like)[1] == 0).all())


def test_blocks_of_rows_that_start_at_different_places_of_a_line_are_streamed_one_by_one() -> None:
    args = typical(OPS["rmsnorm_backward"], (16, 333))
    for streaming, prefetch in itertools.product((False, True), repeat=2):
        check(cpp.RMSNORM_BACKWARD, args, {"threads": 1, "block": 4, "streaming": streaming, "prefetch": prefetch})


def test_a_sum_has_no_second_gradient_where_nothing_came_back_for_it() -> None:
    dy, _, r, w, *rest = typical(OPS["add_rmsnorm_backward"], (7, 100), torch.bfloat16)
    for ours, plain in zip(
        outputs(cpp.ADD_RMSNORM_BACKWARD, (dy, None, r, w, *rest)), outputs(cpp.RMSNORM_BACKWARD, (dy, r, w, *rest)), strict=True
    ):
        assert torch.equal(ours, plain)


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize(("y", "r"), [("x", "residual"), ("residual", "x"), ("x", "new"), ("new", "x")])
def test_add_rmsnorm_works_in_place(y: str, r: str, streaming: bool) -> None:
    args = typical(OPS["add_rmsnorm"], (9, 333), torch.bfloat16)
    right = outputs(cpp.ADD_RMSNORM, args)
    own = {"x": args[0].clone(), "residual": args[1].clone(), "new": torch.empty_like(args[0])}
    config = {"threads": 1, "rows_per_task": 0, "streaming": streaming, "prefetch": True}
    into = build(cpp.ADD_RMSNORM, args, config).into
    assert into is not None
    into((own[y], own[r]), own["x"], own["residual"], *args[2:])
    assert torch.equal(own[y], right[0]) and torch.equal(own[r], right[1])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_swiglu_takes_halves_of_one_tensor_strided_or_not(dtype: torch.dtype) -> None:
    for cols in (1, 40, 1300):
        wide = torch.randn(5, 2 * cols + 3).to(dtype)
        for packed in (wide[:, : 2 * cols], wide[:, 1 : 1 + 2 * cols].contiguous(), torch.randn(2 * cols).to(dtype)):
            check(cpp.SWIGLU, (packed, None))
            check(cpp.SWIGLU_BACKWARD, (torch.randn(*packed.shape[:-1], cols).to(dtype), packed, None))


def test_swiglu_is_right_over_the_whole_range_of_its_exponential() -> None:
    a = torch.cat((torch.linspace(-110, 110, 40001), torch.tensor([0.0, -0.0, 1e-45, 3e38, INF, NAN]))).view(1, -1)
    b = torch.ones_like(a)
    out, exact = run(cpp.SWIGLU, (a, b)).double(), torch.nn.functional.silu(a.double())
    torch.testing.assert_close(out, exact, rtol=6e-7, atol=1e-37, equal_nan=True)
    da, db = outputs(cpp.SWIGLU_BACKWARD, (b, a, b))
    s = torch.sigmoid(a.double())
    torch.testing.assert_close(da[:, :-2].double(), (s * (1 + a.double() * (1 - s)))[:, :-2], rtol=6e-7, atol=3e-7)
    torch.testing.assert_close(db[:, :-2].double(), exact[:, :-2], rtol=6e-7, atol=1e-37)


@pytest.mark.parametrize("kernel", [cpp.SWIGLU, cpp.ROPE], ids=lambda k: k.op)
def test_elementwise_results_may_be_the_input(kernel: Kernel) -> None:
    op = OPS[kernel.op]
    for streaming in (False, True):
        args = typical(op, sized(op, 6, 128))
        config = {**kernel.space.default_for(op.workload_of(args)), "streaming": streaming}
        right = run(kernel, args, config)
        into = build(kernel, args, config).into
        assert into is not None
        into((args[0],), *args)
        assert torch.equal(args[0], right)


@pytest.mark.parametrize("style", ["half", "interleaved"])
@pytest.mark.parametrize("inverse", [False, True])
def test_rope_in_both_styles_and_directions_with_tables_and_positions_of_any_kind(style: str, inverse: bool) -> None:
    for dtype, table, positions in ((torch.float32, torch.float32, torch.int32), (torch.bfloat16, torch.bfloat16, torch.int64)):
        for dim in (2, 30, 64, 96, 130):
            x, cos, sin, at, *_ = typical(OPS["rope"], (7, 3, dim), dtype)
            check(cpp.ROPE, (x, cos.to(table), sin.to(table), at.to(positions), style, inverse))


def test_rope_of_many_leading_dimensions_none_and_heads_that_lie_apart() -> None:
    cos, sin = torch.randn(50, 32), torch.randn(50, 32)
    projected = torch.randn(2, 5, 3, 4, 64)  # batch, tokens, q k v, heads, dim
    positions = torch.randint(50, (2, 9))[:, 2:7]
    check(cpp.ROPE, (projected[:, :, 1], cos, sin, positions, "half", False))
    check(cpp.ROPE, (projected[:, :, 1].transpose(1, 2), cos, sin, torch.randint(50, (1, 4)).expand(2, 4), "interleaved", False))
    check(cpp.ROPE, (projected[0, 0, 0], cos, sin, torch.tensor(7), "half", False))


def test_rope_refuses_positions_beyond_its_tables() -> None:
    x, cos, sin, at, *rest = typical(OPS["rope"], (4, 2, 32))
    into = build(cpp.ROPE, (x, cos, sin, at, *rest)).into
    assert into is not None
    for wrong in (-1, cos.shape[0]):
        with pytest.raises(ValueError, match=f"positions has {wrong}, cos and sin have {cos.shape[0]} rows"):
            into((torch.empty_like(x),), x, cos, sin, torch.tensor([0, wrong, 1, 2]), *rest)


def test_gradients_follow_autograd_through_the_forward_kernels_contract() -> None:
    x, w = torch.randn(33, 257, dtype=torch.float64, requires_grad=True), torch.randn(257, dtype=torch.float64, requires_grad=True)
    dy = torch.randn(33, 257)
    RMSNORM.reference(x, w, 1e-2, 0.0, "fp32").backward(dy.double())
    dx, dw = outputs(cpp.RMSNORM_BACKWARD, (dy, x.detach().float(), w.detach().float(), 1e-2, 0.0, "fp32"))
    torch.testing.assert_close(dx.double(), x.grad, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(dw.double(), w.grad, rtol=1e-5, atol=1e-5)


def test_an_output_of_large_pages_is_whole_and_its_neighbours_are_left_alone() -> None:
    a = torch.arange(9 << 20, dtype=torch.float32)
    assert torch.equal(run(cpp.VECTOR_ADD, (a, a)), a + a)
