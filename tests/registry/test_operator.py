"""Operators inside torch: compilation, autograd, transforms, modes, autocast, and errors that read alike everywhere."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

import kernelyard
from kernelyard.errors import InvalidInput
from kernelyard.registry.registry import Registry
from tests.registry.fakes import make_kernel

ops = kernelyard.ops
Call = Callable[..., torch.Tensor]
X, W = torch.randn(6, 8), torch.rand(8) + 0.5
CALLS: dict[str, tuple[Call, tuple[torch.Tensor, ...]]] = {
    "vector_add": (lambda a, b: ops.vector_add(a, b), (X, X.flip(0))),
    "softmax": (lambda x: ops.softmax(x), (X,)),
    "rmsnorm": (lambda x, w: ops.rmsnorm(x, w, eps=1e-5), (X, W)),
    "rmsnorm without w": (lambda x: ops.rmsnorm(x), (X,)),
    "rmsnorm of Gemma": (lambda x, w: ops.rmsnorm(x, w, 1e-6, offset=1.0), (X, W)),
    "rmsnorm of Llama": (lambda x, w: ops.rmsnorm(x, w, casting="llama"), (X.bfloat16(), W.bfloat16())),
}
every_call = pytest.mark.parametrize("name", CALLS)


@pytest.fixture(autouse=True)
def eager() -> Any:
    with kernelyard.use(rmsnorm="torch.eager", softmax="torch.eager", vector_add="torch.eager"):
        yield


def fresh(args: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    return tuple(arg.clone().requires_grad_() for arg in args)


# torch.library and torch.compile ----------------------------------------------------------------------


@every_call
@pytest.mark.parametrize("gradient", [False, True])
def test_torch_s_own_checks_of_an_operator_pass(name: str, gradient: bool) -> None:
    _, args = CALLS[name]
    args = fresh(args) if gradient else args
    operator = getattr(ops, name.split()[0])
    kwargs: dict[str, Any] = {"rmsnorm of Gemma": {"offset": 1.0}, "rmsnorm of Llama": {"casting": "llama"}}.get(name, {})
    torch.library.opcheck(operator._torch_op.default, args, kwargs)


@every_call
@pytest.mark.parametrize("dynamic", [False, True])
def test_a_compiled_call_in_one_graph_equals_the_eager_one(name: str, dynamic: bool) -> None:
    call, args = CALLS[name]
    torch._dynamo.reset()
    compiled = torch.compile(call, backend="aot_eager", fullgraph=True, dynamic=dynamic)
    for rows in (6, 3, 5) if dynamic else (6,):
        some = tuple(arg[:rows] if arg.dim() == 2 else arg for arg in args)
        torch.testing.assert_close(compiled(*some), call(*some), rtol=0, atol=0)


def test_a_compiled_call_differentiates_as_the_eager_one() -> None:
    torch._dynamo.reset()
    call, args = CALLS["rmsnorm"]
    compiled = torch.compile(call, backend="aot_eager", fullgraph=True)
    gradients = [torch.autograd.grad(run(*inputs).square().sum(), inputs) for run in (call, compiled) for inputs in [fresh(args)]]
    torch.testing.assert_close(gradients[0], gradients[1])


def test_inductor_may_restride_what_it_gives_and_the_result_stays_right() -> None:
    torch._dynamo.reset()

    def layer(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return ops.rmsnorm((x * 2).t().contiguous().t() + 1, w) * ops.softmax((x + 1).t()).t()

    x, w = torch.randn(16, 33).t(), torch.rand(16)
    torch.testing.assert_close(torch.compile(layer, fullgraph=True)(x, w), layer(x, w))


def test_the_first_access_of_an_operator_may_be_inside_a_compiled_function() -> None:
    code = """
import torch, kernelyard
x, w = torch.randn(4, 8), torch.rand(8)
def layer(x, w): return kernelyard.ops.rmsnorm(x, w, eps=1e-5) + kernelyard.ops.softmax(x)
with kernelyard.use(rmsnorm="torch.eager", softmax="torch.eager"):
    compiled = torch.compile(layer, backend="eager", fullgraph=True)(x, w)
    torch.testing.assert_close(compiled, layer(x, w))
"""
    ran = subprocess.run([sys.executable, "-W", "error:::kernelyard", "-c", code], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr[-2000:]


def test_pins_act_on_a_compiled_call_when_it_runs(install: Callable[..., Registry]) -> None:
    install(make_kernel("fake.one", 1, priority=1), make_kernel("fake.two", 2))
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: kernelyard.ops.scale(x), backend="eager", fullgraph=True)
    assert float(compiled(X)[0, 0]) == 1
    with kernelyard.use(scale="fake.two"):
        assert float(compiled(X)[0, 0]) == 2


def test_a_tracer_sees_the_operator() -> None:
    from torch.fx.experimental.proxy_tensor import make_fx

    for tracing in ("real", "fake", "symbolic"):
        graph = make_fx(CALLS["rmsnorm"][0], tracing_mode=tracing)(X, W)
        assert torch.ops.kernelyard.rmsnorm.default in [node.target for node in graph.graph.nodes], tracing
        torch.testing.assert_close(graph(X + 1, W), CALLS["rmsnorm"][0](X + 1, W))


def test_an_exported_program_has_the_operator_whole() -> None:
    class Layer(torch.nn.Module):
        def forward(self, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
            return ops.rmsnorm(x, w)

    program = torch.export.export(Layer(), (X, W))
    torch.testing.assert_close(program.module()(X, W), ops.rmsnorm(X, W))


def test_a_mode_that_watches_operators_sees_the_call() -> None:
    with FlopCounterMode(display=False):
        torch.testing.assert_close(ops.softmax(X), torch.softmax(X, -1))


# Autograd ---------------------------------------------------------------------------------------------


PEERS: dict[str, Call] = {
    "vector_add": torch.add,
    "softmax": lambda x: torch.softmax(x, -1),
    "rmsnorm": lambda x, w: F.rms_norm(x, (8,), w, 1e-5),
    "rmsnorm without w": lambda x: F.rms_norm(x, (8,), None, 1e-6),
    "rmsnorm of Gemma": lambda x, w: F.rms_norm(x, (8,), w + 1, 1e-6),
}


@pytest.mark.parametrize("name", PEERS)
@pytest.mark.parametrize("dy", ["random", "expanded", "transposed"])
def test_gradients_equal_torch_s_and_dy_is_left_alone(name: str, dy: str) -> None:
    call, args = CALLS[name]
    grad = {"random": torch.randn(6, 8), "expanded": torch.ones(()).expand(6, 8), "transposed": torch.randn(8, 6).t()}[dy]
    before = grad.clone()
    inputs, peers = fresh(args), fresh(args)
    y, expected = call(*inputs), PEERS[name](*peers)
    torch.testing.assert_close(y, expected)
    got = [torch.autograd.grad(y, inputs, grad, retain_graph=True) for _ in range(2)]
    torch.testing.assert_close(got[0], torch.autograd.grad(expected, peers, grad))
    torch.testing.assert_close(got[0], got[1], rtol=0, atol=0)
    assert torch.equal(grad, before)
    addresses = {tensor.untyped_storage().data_ptr() for tensor in (*got[0], *got[1], grad)}
    assert len(addresses) == 2 * len(inputs) + 1, "no gradient shares memory with another or with dy"


@pytest.mark.parametrize(("x_grad", "w_grad"), [(True, False), (False, True), (True, True)])
def test_each_gradient_is_computed_alone_and_together(x_grad: bool, w_grad: bool) -> None:
    x, w = X.clone().requires_grad_(x_grad), W.clone().requires_grad_(w_grad)
    peer_x, peer_w = X.clone().requires_grad_(x_grad), W.clone().requires_grad_(w_grad)
    ops.rmsnorm(x, w, eps=1e-5).sum().backward()
    F.rms_norm(peer_x, (8,), peer_w, 1e-5).sum().backward()
    for tensor, peer in ((x, peer_x), (w, peer_w)):
        assert (tensor.grad is None) == (peer.grad is None)
        if tensor.grad is not None:
            torch.testing.assert_close(tensor.grad, peer.grad)


def test_a_weight_of_another_dtype_gets_a_gradient_of_its_dtype() -> None:
    x, w = X.bfloat16().requires_grad_(), W.clone().requires_grad_()
    ops.rmsnorm(x, w).sum().backward()
    assert x.grad is not None and w.grad is not None
    assert (x.grad.dtype, w.grad.dtype) == (torch.bfloat16, torch.float32)


def test_a_second_derivative_is_refused_by_name_where_the_gradient_is_an_op_and_torch_s_where_it_is_plain() -> None:
    def second(call: Call, *args: torch.Tensor) -> torch.Tensor:
        (first,) = torch.autograd.grad(call(*args).pow(3).sum(), args[0], create_graph=True)
        return torch.autograd.grad(first.square().sum(), args[0])[0]

    torch.testing.assert_close(second(CALLS["vector_add"][0], *fresh((X, X))), second(torch.add, *fresh((X, X))))
    for name, args in (("softmax", (X,)), ("rmsnorm", (X, W))):
        with pytest.raises(InvalidInput, match=f"{name}_backward has no gradient"):
            second(CALLS[name][0], *fresh(args))


def test_an_op_without_a_gradient_runs_forward_and_says_so_backward(install: Callable[..., Registry]) -> None:
    install(make_kernel("fake.one", 1))
    y = kernelyard.ops.scale(X.clone().requires_grad_())
    with pytest.raises(InvalidInput, match="scale has no gradient"):
        y.sum().backward()


def test_checkpoint_recomputes_the_op() -> None:
    x, peer = fresh((X,))[0], fresh((X,))[0]
    checkpoint(lambda x: ops.rmsnorm(x, W, eps=1e-5) * 2, x, use_reentrant=False).sum().backward()
    (F.rms_norm(peer, (8,), W, 1e-5) * 2).sum().backward()
    torch.testing.assert_close(x.grad, peer.grad)


def test_no_grad_and_inference_mode_leave_no_graph() -> None:
    x = X.clone().requires_grad_()
    with torch.no_grad():
        assert not ops.softmax(x).requires_grad
    with torch.inference_mode():
        assert ops.softmax(x).is_inference()
    assert ops.softmax(x).requires_grad and not ops.softmax(X).requires_grad


def test_a_module_s_functional_call_differentiates() -> None:
    class Norm(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = torch.nn.Parameter(torch.ones(8))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return ops.rmsnorm(x, self.w, eps=1e-5)

    w = W.clone().requires_grad_()
    torch.func.functional_call(Norm(), {"w": w}, (X,)).sum().backward()
    peer = W.clone().requires_grad_()
    F.rms_norm(X, (8,), peer, 1e-5).sum().backward()
    torch.testing.assert_close(w.grad, peer.grad)


# Transforms, wrapped tensors, autocast ----------------------------------------------------------------


def test_torch_func_grad_is_right_or_refused() -> None:
    try:
        got = torch.func.grad(lambda w: ops.rmsnorm(X, w, eps=1e-5).square().sum())(W)
    except RuntimeError as error:  # torch.library's formulas do not take part in functorch up to torch 2.13
        assert "functorch" in str(error)
    else:
        torch.testing.assert_close(got, torch.func.grad(lambda w: F.rms_norm(X, (8,), w, 1e-5).square().sum())(W))


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_vmap_is_right_or_refused() -> None:
    stack = torch.randn(3, 6, 8)
    try:
        got = torch.vmap(lambda x: ops.rmsnorm(x, W, eps=1e-5))(stack)
    except (RuntimeError, InvalidInput) as error:
        assert "vmap" in str(error) or "Batching rule" in str(error)
    else:
        torch.testing.assert_close(got, F.rms_norm(stack, (8,), W, 1e-5))


def test_forward_mode_is_refused_rather_than_wrong() -> None:
    with pytest.raises((InvalidInput, RuntimeError, NotImplementedError), match=r"forward-mode|jvp|forward AD"):
        torch.func.jvp(lambda x: ops.softmax(x), (X,), (torch.ones_like(X),))
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(X, torch.ones_like(X))
        with pytest.raises((InvalidInput, RuntimeError, NotImplementedError), match=r"forward-mode|jvp|forward AD"):
            ops.softmax(dual)
        torch.testing.assert_close(ops.softmax(X), torch.softmax(X, -1))


@pytest.mark.filterwarnings("ignore:Accessing the data pointer of FakeTensor")
def test_fake_and_meta_tensors_give_shapes_and_run_nothing(install: Callable[..., Registry]) -> None:
    install(make_kernel("fake.one", "broken"))
    from torch._subclasses import FakeTensorMode

    with FakeTensorMode():
        inside = kernelyard.ops.scale(torch.empty(3, 5))
    fake = FakeTensorMode().from_tensor(X)
    for y, shape in ((inside, (3, 5)), (kernelyard.ops.scale(fake), (6, 8)), (kernelyard.ops.scale(X.to("meta")), (6, 8))):
        assert tuple(y.shape) == shape and y.dtype == torch.float32


@pytest.mark.filterwarnings("ignore:Accessing the data pointer of FakeTensor")
def test_a_kernel_bound_for_plain_tensors_meets_no_others(install: Callable[..., Registry]) -> None:
    from torch._subclasses import FakeTensorMode

    install(make_kernel("fake.one", "by_address"))
    torch.testing.assert_close(kernelyard.ops.scale(X), X * 2)
    torch.testing.assert_close(kernelyard.ops.scale(torch._neg_view(X)), X * -2)
    torch.testing.assert_close(kernelyard.ops.scale(torch.complex(X, X).conj().imag), X * -2)
    assert type(kernelyard.ops.scale(FakeTensorMode().from_tensor(X))).__name__ == "FakeTensor"
    assert kernelyard.ops.scale(X.to("meta")).is_meta


@pytest.mark.parametrize("gradient", [False, True])
def test_autocast_changes_nothing(gradient: bool) -> None:
    x, w = X.bfloat16().requires_grad_(gradient), W.bfloat16()
    outside = ops.softmax(x), ops.rmsnorm(x, w), ops.vector_add(x, x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = ops.softmax(x), ops.rmsnorm(x, w), ops.vector_add(x, x)
    for one, other in zip(outside, inside, strict=True):
        assert other.dtype == torch.bfloat16 and torch.equal(one, other)


def test_a_kernel_computes_outside_autocast(install: Callable[..., Registry]) -> None:
    install(make_kernel("fake.one", "by_matmul"))
    outside = kernelyard.ops.scale(X)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = kernelyard.ops.scale(X)
    assert inside.dtype == torch.float32 and torch.equal(inside, outside)


def test_the_result_is_contiguous_through_torch_as_its_fake_promised(install: Callable[..., Registry]) -> None:
    install(make_kernel("fake.one", "honest"))
    assert kernelyard.ops.scale._torch_op(torch.randn(8, 6).t()).is_contiguous()


# Arguments --------------------------------------------------------------------------------------------


def test_keyword_arguments_in_any_order_are_one_call() -> None:
    expected = ops.rmsnorm(X, W, 1e-5, offset=1.0, casting="llama")
    assert torch.equal(ops.rmsnorm(casting="llama", w=W, offset=1.0, x=X, eps=1e-5), expected)
    assert torch.equal(ops.vector_add(b=X, a=W.expand(6, 8)), ops.vector_add(W.expand(6, 8), X))


INVALID: list[tuple[str, Call, str]] = [
    ("a weight of another length", lambda: ops.rmsnorm(X, W[:7]), "rmsnorm: w has shape (7,), x has 8 columns. Give w as (cols,)."),
    ("an integer tensor", lambda: ops.softmax(X.int()), "softmax: x is torch.int32. Its dtypes: float32, bfloat16, float16."),
    ("a weight elsewhere", lambda: ops.rmsnorm(X, W.to("meta")), "rmsnorm: w is on meta, x on cpu."),
    ("no dimensions", lambda: ops.softmax(torch.ones(())), "softmax: x has no dimensions."),
    ("a negative eps", lambda: ops.rmsnorm(X, W, -1.0), "rmsnorm: eps is -1.0. Give eps >= 0."),
    ("an unknown casting", lambda: ops.rmsnorm(X, W, casting="gemma"), "rmsnorm: casting is 'gemma'. There are: fp32, llama."),
    ("other shapes", lambda: ops.vector_add(X, W), "vector_add: a has shape (6, 8), b has (8,). Give equal shapes"),
    ("other dtypes", lambda: ops.vector_add(X, X.half()), "vector_add: a is torch.float32, b is torch.float16."),
]


@pytest.mark.parametrize(("call", "told"), [case[1:] for case in INVALID], ids=[case[0] for case in INVALID])
def test_what_breaks_the_contract_is_told_alike_eager_and_compiled(call: Call, told: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        call()
    assert told in str(caught.value)
    torch._dynamo.reset()
    with pytest.raises(Exception) as compiled:  # Dynamo wraps what a fake raises in its own
        torch.compile(call, backend="eager", fullgraph=True)()
    assert told in str(compiled.value)


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda: ops.rmsnorm(), "argument 'x' is missing"),
        (lambda: ops.rmsnorm(3), "'x' is of type int, not tensor"),
        (lambda: ops.rmsnorm(X.numpy()), "'x' is of type ndarray, not tensor"),
        (lambda: ops.rmsnorm(X, 2.0), "'w' is of type float, not tensor"),
        (lambda: ops.rmsnorm(X, W, "small"), "'eps' is of type str, not float"),
        (lambda: ops.rmsnorm(X, W, eps=[1e-6]), "'eps' is of type list, not float"),
        (lambda: ops.rmsnorm(X, W, dim=0), "argument 'dim' is unknown"),
        (lambda: ops.rmsnorm(X, W, 1e-6, 0.0), "at most 3 positional arguments, not 4"),
    ],
)
def test_arguments_that_are_none_are_told_with_the_usage(call: Call, told: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        call()
    assert told in str(caught.value) and "Usage: kernelyard.ops.rmsnorm(Tensor x" in str(caught.value)


def test_an_integer_serves_as_a_number() -> None:
    assert torch.equal(ops.rmsnorm(X, W, 0, offset=1), ops.rmsnorm(X, W, 0.0, offset=1.0))


def test_a_sparse_tensor_is_refused_by_name() -> None:
    for layout in (torch.sparse_coo, torch.sparse_csr):
        with pytest.raises(InvalidInput, match=rf"rmsnorm: x has layout {str(layout)[6:]}. Give it dense: x.to_dense\(\)"):
            ops.rmsnorm(X.to_sparse(layout=layout), W)
