"""Calls made from C++: they give what the calls through Python give, and leave to those whatever they do not know."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from kernelyard.plugins.cpp.toolchain import recipe
from kernelyard.plugins.native import bound as room
from kernelyard.plugins.native.bound import From, bound, likes, order
from kernelyard.plugins.native.build import build_native
from kernelyard.registry import recall, registry
from kernelyard.registry.backend import Executable, NativeSource
from kernelyard.registry.op import Op, Point
from kernelyard.registry.spec import Workload

PLANTED = Path(__file__).parent / "planted"
X, W = torch.randn(3, 40), torch.randn(40)


def op_of(name: str) -> tuple[Op, Workload]:
    op = registry.current().op(name)
    return op, op.workload_of((X, W, 1e-6, 0.0, "fp32")) if name == "rmsnorm" else op.workload(Point((3, 40), "float32"), "cpu")


@dataclasses.dataclass
class Both:
    """`report` bound for rmsnorm, with a slow way that remembers its calls."""

    slowly: list[tuple[Any, ...]]
    fast: Executable


def both(arguments: Callable[..., tuple[Any, ...]], *, answers: bool = False) -> Both:
    slowly = list[tuple[Any, ...]]()

    def call(*args: Any, **named: Any) -> str:
        slowly.append(args)
        return "slow"

    module = build_native(NativeSource(("report.cpp",), "report", arguments), PLANTED, "test.report", recipe())
    return Both(slowly, bound(*op_of("rmsnorm"), module["report"], arguments, Executable(call, call, {"registers": 3}), answers=answers))


def in_mode(mode: int) -> Callable[..., tuple[Any, ...]]:
    def arguments(outputs: tuple[Any, ...], x: Any, w: Any, eps: Any, offset: float, casting: str) -> tuple[Any, ...]:
        return x, outputs[0], float(eps), w, mode, True, None, 0.5 + offset

    return arguments


in_order = in_mode(0)
ARGS = (X, W, 0.25, 0.0, "fp32")


def told(x: torch.Tensor, eps: float) -> list[float]:
    return [float(x.dim()), float(x.shape[0]), float(x.flatten()[0]), eps, float(W[1]), 1.0, 0.0, 0.5]


def test_the_order_is_found_without_a_tensor() -> None:
    argument, output, constant = From.ARGUMENT, From.OUTPUT, From.CONSTANT
    numbers = ((constant, 0), (constant, True), (constant, None), (constant, 0.5))
    assert order(*op_of("rmsnorm"), in_order) == ((argument, 0), (output, 0), (argument, 2), (argument, 1), *numbers)


@pytest.mark.parametrize(
    "arguments",
    [
        lambda outputs, x, w, eps, *rest: (outputs[0], x.contiguous(), w, eps),
        lambda outputs, x, w, eps, *rest: (outputs[0], x, w, eps * 2),
        lambda outputs, x, w, eps, *rest: (outputs[0], x, w, float(eps) * 2),
        lambda outputs, x, w, eps, *rest: (outputs[0], x, w, 1 if eps else 2),
        lambda outputs, x, w, eps, *rest: (outputs[0], x, w, eps == 1.0),
        lambda outputs, x, w, eps, offset, casting: (outputs[0], x, w, casting),
        lambda outputs, x, w, eps, *rest: (outputs[0], x, w, torch.empty(3)),
        lambda outputs, x, w, eps, *rest: (outputs[0], x, w, 2**70),
        lambda outputs, x, w, eps, *rest: (outputs[0], x, len(w)),
        lambda outputs, x, w, eps, *rest: 1 / 0,
    ],
)
def test_what_is_computed_with_has_no_order(arguments: Callable[..., tuple[Any, ...]]) -> None:
    assert order(*op_of("rmsnorm"), arguments) is None
    assert both(arguments).fast.call(*ARGS) == "slow"


def test_a_function_is_handed_the_tensors_and_numbers_of_the_call() -> None:
    found, out = both(in_order), torch.zeros_like(X)
    assert found.fast.into is not None and found.fast.resources == {"registers": 3}
    for eps in (0.25, 2):
        assert found.fast.into((out,), X, W, eps, 0.0, "fp32") is None
        assert out.flatten()[:8].tolist() == told(X, float(eps)) and not found.slowly


def test_results_are_new_contiguous_and_as_the_arguments_of_this_very_call() -> None:
    found, x = both(in_order), torch.randn(40, 2, 3).permute(2, 1, 0)  # of more dimensions than the workload has
    y = found.fast.call(x, *ARGS[1:])
    assert isinstance(y, torch.Tensor) and y.shape == (3, 2, 40) and y.is_contiguous() and not found.slowly
    assert y.flatten()[:8].tolist() == told(x, 0.25) and found.fast.call(*ARGS).data_ptr() != y.data_ptr()


class Sub(torch.Tensor):
    """A class of its own, which may mean something else."""


OTHER = [
    (None, W, 1e-6, 0.0, "fp32"), (X, None, 1e-6, 0.0, "fp32"), (X, W, "1e-6", 0.0, "fp32"), (X, W, True, 0.0, "fp32"),
    (X, W, 10**400, 0.0, "fp32"), (X, W, 1e-6, None, "fp32"), (X, W, 1e-6, 0.0, "llama"), (X, W, 1e-6, 0.0, 3), (X, W, 1e-6, 0.0),
    (X.as_subclass(Sub), W, 1e-6, 0.0, "fp32"), (X.to_sparse(), W, 1e-6, 0.0, "fp32"), (3, W, 1e-6, 0.0, "fp32"), (),
]  # fmt: skip


@pytest.mark.parametrize("args", OTHER)
def test_another_call_goes_the_slow_way(args: tuple[Any, ...]) -> None:
    found = both(in_order)
    assert found.fast.call(*args) == "slow" == found.fast.into((torch.empty_like(X),), *args)  # type: ignore[misc]
    assert len(found.slowly) == 2


def test_keywords_and_outputs_that_are_no_tuple_of_plain_tensors_go_the_slow_way() -> None:
    found = both(in_order)
    assert found.fast.call(*ARGS[:4], casting="fp32") == "slow" and found.fast.into is not None
    for outputs in ([torch.empty_like(X)], (), (X, X), (None,), (X.as_subclass(Sub),), X):
        assert found.fast.into(outputs, *ARGS) == "slow"  # type: ignore[func-returns-value]


def test_equal_statics_serve_whichever_object_they_are() -> None:
    assert isinstance(both(in_order).fast.call(*ARGS[:4], "".join(["fp", "32"])), torch.Tensor)


@pytest.mark.parametrize("mode, answers, fast", [(0, True, True), (1, False, True), (1, True, False), (2, False, False), (2, True, False)])
def test_a_function_that_did_not_do_the_work_leaves_it_to_the_slow_way(mode: int, answers: bool, fast: bool) -> None:
    found = both(in_mode(mode), answers=answers)
    assert (found.fast.call(*ARGS) == "slow") is not fast and len(found.slowly) == (not fast)


def test_what_a_native_function_raises_is_raised() -> None:
    table = registry.current()
    op, kernel = table.op("softmax"), table.kernel("softmax", "cpp.onepass")
    workload = op.workload(Point((3, 40), "float32"), "cpu")
    built = table.build(kernel, workload, kernel.space.default_for(workload))
    assert type(built.call).__name__ == "Bound"
    with pytest.raises(TypeError, match="x must be float32"):
        built.call(torch.ones(3, 40, dtype=torch.int32))


def test_without_a_compiler_calls_go_the_slow_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "_extension", lambda: None)
    assert both(in_order).fast.call(*ARGS) == "slow"


def test_an_output_like_no_argument_is_made_by_the_contract() -> None:
    op = registry.current().op("swiglu")
    packed = op.workload_of((torch.randn(3, 80), None))
    assert likes(op, packed) == () and likes(*op_of("rmsnorm")) == ((0, torch.float32),)
    kernel = registry.current().kernel("swiglu", next(k.name for k in registry.current().kernels("swiglu") if k.backend == "cpp"))
    built = registry.current().build(kernel, packed, kernel.space.default_for(packed))
    a = torch.randn(3, 80)
    torch.testing.assert_close(built.call(a, None), torch.nn.functional.silu(a[:, :40]) * a[:, 40:])


def test_calls_keep_no_reference() -> None:
    found, x, out = both(in_order), torch.randn(3, 40), torch.empty(3, 40)
    counted = [sys.getrefcount(one) for one in (x, W, out)]
    for _ in range(100):
        found.fast.call(x, *ARGS[1:])
        found.fast.into((out,), x, *ARGS[1:])  # type: ignore[misc]
        found.fast.into((out,), x, W, "x", 0.0, "fp32")  # type: ignore[misc]
        found.slowly.clear()
    assert [sys.getrefcount(one) for one in (x, W, out)] == counted


# Behind a test ----------------------------------------------------------------------------------------


def behind(found: Both, *outs: torch.Tensor) -> Callable[..., Any]:
    run = found.fast.into if outs else found.fast.call
    assert run is not None
    serve = recall.serving(op_of("rmsnorm")[0].arguments, ARGS, run, outs)
    assert type(serve).__name__ == "Tested" and serve is not None
    return serve


ALIKE = [
    ((X, W, 0.25), {}), ((torch.zeros(3, 40), torch.ones(40), 0.25), {}), ((X,), {"w": W, "eps": 0.25}), ((X, W, 0.25), {"offset": 0.0}),
    ((X, W), {"casting": "fp32", "eps": 0.25}),
]  # fmt: skip
UNLIKE = [
    ((X, W), {}), ((X, W, 0.5), {}), ((X, W, 1), {}), ((X, W, None), {}), ((X, None, 0.25), {}), ((X[:2], W, 0.25), {}),
    ((X.double(), W, 0.25), {}), ((torch.randn(40, 3).t(), W, 0.25), {}), ((torch.randn(121)[1:].view(3, 40), W, 0.25), {}),
    ((X.clone().requires_grad_(), W, 0.25), {}), ((torch._neg_view(X), W, 0.25), {}), ((X.to("meta"), W, 0.25), {}),
    ((X.as_subclass(Sub), W, 0.25), {}), ((X, W, 0.25), {"offset": 1.0}), ((X, W, 0.25), {"casting": "llama"}), ((3, W, 0.25), {}),
]  # fmt: skip


@pytest.mark.parametrize("args, named", ALIKE)
def test_a_call_like_the_known_one_is_run_however_it_is_written(args: tuple[Any, ...], named: dict[str, Any]) -> None:
    found, out = both(in_order), torch.zeros_like(X)
    y, w = behind(found)(*args, **named), named["w"] if "w" in named else args[1]
    assert y.flatten()[:8].tolist() == [*told(args[0], 0.25)[:4], float(w[1]), 1.0, 0.0, 0.5]
    assert behind(found, out)(torch.zeros_like(X), *args, **named) is True and not found.slowly


@pytest.mark.parametrize("args, named", UNLIKE)
def test_any_other_call_is_left_alone(args: tuple[Any, ...], named: dict[str, Any]) -> None:
    found, out = both(in_order), torch.zeros_like(X)
    assert behind(found)(*args, **named) is None and behind(found, out)(out, *args, **named) is None
    assert not found.slowly and not out.any()


def test_modes_and_transforms_leave_it_alone() -> None:
    serve = behind(both(in_order))
    for mode in (torch.autocast("cpu"), torch.inference_mode()):
        with mode:
            assert serve(X, W, 0.25) is None
    torch.func.vmap(lambda x: (x, [None for _ in [0] if serve(x, W, 0.25) is not None])[0])(torch.ones(2, 3, 40))


def test_wrong_calls_raise_as_python_does() -> None:
    serve = behind(both(in_order))
    for args, named in (((), {}), ((X, W, 0.25, 0.0), {}), ((X, W), {"weight": W})):
        with pytest.raises(TypeError):
            serve(*args, **named)


def test_results_have_to_lie_as_they_did() -> None:
    found, room = both(in_order), torch.zeros(6, 40)
    out, apart, within = torch.zeros_like(X), behind(found, torch.zeros_like(X)), behind(found, X)
    assert apart(out, X, W, 0.25) and apart(room[3:], room[:3], W, 0.25)
    assert not apart(X, X, W, 0.25) and not apart(room[1:4], room[:3], W, 0.25)
    assert within(X, X, W, 0.25) and not within(out, X, W, 0.25) and not within(X[:], X, W, 0.25)
    assert not apart(None, X, W, 0.25) and not apart([out], X, W, 0.25)


def test_of_several_results_all_have_to_be_there_in_a_tuple() -> None:
    table = registry.current()
    op, kernel = table.op("add_rmsnorm"), next(k for k in table.kernels("add_rmsnorm") if k.backend == "cpp")
    args = (X, torch.randn(3, 40), W, 1e-6, 0.0, "fp32")
    workload = op.workload_of(args)
    built, outs = table.build(kernel, workload, kernel.space.default_for(workload)), (torch.empty_like(X), torch.empty_like(X))
    serve, write = recall.serving(op.arguments, args, built.call), recall.serving(op.arguments, args, built.into, outs)  # type: ignore[arg-type]
    assert serve is not None and write is not None and type(write).__name__ == "Tested"
    wanted = op.reference(*args)
    assert write(outs, *args[:3]) is True
    for result, made, reference in zip(outs, serve(*args[:3]), wanted, strict=True):
        torch.testing.assert_close(result, reference)
        torch.testing.assert_close(made, reference)
    for others in (outs[0], outs[:1], list(outs), (outs[0], outs[0]), (outs[0], None)):
        assert write(others, *args[:3]) is None


def test_a_test_keeps_no_tensor_and_no_reference() -> None:
    found, x, out = both(in_order), torch.randn(3, 40), torch.empty(3, 40)
    counted = [sys.getrefcount(one) for one in (x, out, None, True)]
    serve = recall.serving(op_of("rmsnorm")[0].arguments, (x, *ARGS[1:]), found.fast.call)
    write = recall.serving(op_of("rmsnorm")[0].arguments, (x, *ARGS[1:]), found.fast.into, (out,))  # type: ignore[arg-type]
    for _ in range(1000):
        for args in ((x, W, 0.25), (x, W), (x, None, 0.25)):
            serve(*args), write(out, *args)  # type: ignore[misc]
    del serve, write, args
    after = [sys.getrefcount(one) for one in (x, out, None, True)]
    assert after[:2] == counted[:2] and all(abs(a - b) < 500 for a, b in zip(after, counted, strict=True))
