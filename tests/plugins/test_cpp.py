"""The C++ kernels keep their ops' contracts, whatever the config, layout, dtype and values."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from kernelyard.contracts.rmsnorm import RMSNORM
from kernelyard.contracts.softmax import SOFTMAX
from kernelyard.contracts.vector_add import VECTOR_ADD
from kernelyard.errors import BuildFailed
from kernelyard.plugins import cpp
from kernelyard.plugins.cpp import toolchain
from kernelyard.plugins.cpp.probe import available
from kernelyard.registry.backend import Executable
from kernelyard.registry.kernel import Kernel
from kernelyard.registry.op import Op
from kernelyard.registry.spec import Config, Workload

pytestmark = pytest.mark.skipif(not available("cpu"), reason=available("cpu").reason)

OPS = {"rmsnorm": RMSNORM, "softmax": SOFTMAX, "vector_add": VECTOR_ADD}
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
NAN, INF = float("nan"), float("inf")
EVERY = pytest.mark.parametrize("kernel", cpp.plugin.kernels, ids=lambda k: f"{k.op}-{k.name}")
SOFTMAXES = pytest.mark.parametrize("kernel", [k for k in cpp.plugin.kernels if k.op == "softmax"], ids=lambda k: k.name)


def build(kernel: Kernel, args: tuple[Any, ...], config: Config | None = None) -> Executable:
    op = OPS[kernel.op]
    workload = op.workload_of(args)
    assert kernel.support.fits(workload)
    chosen = config or kernel.space.default_for(workload)
    assert kernel.space.allows(chosen, workload)
    return cpp.CPP.builder().build(op, kernel, workload, chosen)


def run(kernel: Kernel, args: tuple[Any, ...], config: Config | None = None) -> torch.Tensor:
    """The output, written over NaN between guards that must survive; inputs must too."""
    op = OPS[kernel.op]
    before = [a.clone() if isinstance(a, torch.Tensor) else a for a in args]
    like = op.empty(*args)[0]
    guarded = torch.full((like.numel() + 129,), 123.0, dtype=like.dtype)
    out = guarded[65 : 65 + like.numel()].view(like.shape)
    out.fill_(NAN)
    into = build(kernel, args, config).into
    assert into is not None
    into((out,), *args)
    assert bool((guarded[:65] == 123).all() and (guarded[65 + like.numel() :] == 123).all()), "stored outside the output"
    for a, b in zip(args, before, strict=True):
        assert not isinstance(a, torch.Tensor) or torch.equal(a.nan_to_num(), b.nan_to_num()), "changed an input"
    return out


def expected(op: Op, args: tuple[Any, ...]) -> torch.Tensor:
    wide = [a.float() if isinstance(a, torch.Tensor) else a for a in args]
    result: torch.Tensor = op.reference(*wide)
    return result


def check(kernel: Kernel, args: tuple[Any, ...], config: Config | None = None) -> None:
    op = OPS[kernel.op]
    tolerance = op.tolerance(op.workload_of(args))
    out = run(kernel, args, config)
    torch.testing.assert_close(
        out.float(), expected(op, args), rtol=tolerance.relative, atol=tolerance.absolute, equal_nan=True, msg=lambda m: f"{config}: {m}"
    )


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
    x = torch.randn(67, 333).to(dtype)
    args = {"rmsnorm": (x, torch.randn(333).to(dtype), 1e-6, 0.0, "fp32"), "softmax": (x,), "vector_add": (x, x)}[kernel.op]
    for config in kernel.space.configs(OPS[kernel.op].workload_of(args)):
        check(kernel, args, config)


@EVERY
def test_the_number_of_threads_does_not_change_a_bit(kernel: Kernel) -> None:
    x = torch.randn(37, 1000)
    args = {"rmsnorm": (x, torch.randn(1000), 1e-6, 0.0, "fp32"), "softmax": (x,), "vector_add": (x, x)}[kernel.op]
    config = {**kernel.space.default_for(OPS[kernel.op].workload_of(args)), "threads": 1, "rows_per_task": 0}
    op = OPS[kernel.op]
    for threads, tasks in ((3, 0), (3, 2)):  # outside every space, so that it means something on any machine
        many = cpp.CPP.builder().build(op, kernel, op.workload_of(args), {**config, "threads": threads, "rows_per_task": tasks})
        assert torch.equal(run(kernel, args, config), many.call(*args))


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
    if kernel.op == "vector_add":
        pytest.skip("takes contiguous tensors only, and says so")
    base = torch.randn(6, 5, 4, 40)
    views = (base, base[::2, 1:, :, :33], base.permute(2, 0, 1, 3), base[:, :1].expand(6, 9, 4, 40), base[0, 0, 0], base[0, 0, :0])
    for x in views:
        args = (x, torch.randn(x.shape[-1]), 1e-6, 0.0, "fp32") if kernel.op == "rmsnorm" else (x,)
        check(kernel, args)


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
