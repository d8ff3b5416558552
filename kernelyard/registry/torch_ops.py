"""Each op as a torch.library operator, so that torch.compile, autograd, CUDA graphs and fake tensors know it.

Eager calls without a gradient bypass it: it costs several times a lean call. It is `torch.ops.kernelyard.<name>`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from kernelyard.errors import InvalidInput
from kernelyard.registry.op import Op

_libraries: dict[str, Any] = {}


def register(op: Op, run: Callable[..., Any]) -> Any:
    """Define the op with schema, implementation, fake and autograd, in place of an earlier one; returns torch's callable for it."""
    if op.name in _libraries:
        _libraries.pop(op.name)._destroy()
    library: Any = torch.library.Library("kernelyard", "FRAGMENT")  # type: ignore[no-untyped-call]
    name = f"kernelyard::{op.name}"
    library.define(op.name + op.schema, tags=(torch.Tag.pt2_compliant_tag,))
    for key in ("CPU", "CUDA"):
        library.impl(op.name, _implementation(op, run), key)
    torch.library.register_fake(name, _fake(op), lib=library)
    if not op.mutated:  # torch has no formula for what writes into its arguments; `operator` refuses a gradient
        torch.library.register_autograd(name, _backward(op), setup_context=_setup_context(op), lib=library)
    _libraries[op.name] = library
    return getattr(torch.ops.kernelyard, op.name)


def _implementation(op: Op, run: Callable[..., Any]) -> Callable[..., Any]:
    """Runs outside autocast (the contract says the dtypes), and keeps the contiguous layout that the fake promised."""

    def implementation(*args: Any, **kwargs: Any) -> Any:
        bound = op.bind(args, kwargs)
        if torch._C._is_any_autocast_enabled():
            with torch.autocast(bound[0].device.type, enabled=False):
                outputs = run(*bound)
        else:
            outputs = run(*bound)
        return outputs.contiguous() if op.returns == 1 else tuple(output.contiguous() for output in outputs)

    return implementation


def _fake(op: Op) -> Callable[..., Any]:
    def fake(*args: Any, **kwargs: Any) -> Any:
        bound = op.bind(args, kwargs)
        op.validate(*bound)
        outputs = op.empty(*bound)
        return outputs[0] if op.returns == 1 else outputs

    return fake


def _setup_context(op: Op) -> Callable[..., None]:
    def remember(ctx: Any, args: tuple[Any, ...], output: Any) -> None:
        if op.gradient is None:
            return
        ctx.set_materialize_grads(False)  # zeros for an output that nothing was made of would be read, and added
        outputs = output if isinstance(output, tuple) else (output,)
        saved = op.gradient.saved(args, outputs)
        ctx.is_tensor = [isinstance(value, torch.Tensor) for value in saved]
        ctx.save_for_backward(*(value for value in saved if isinstance(value, torch.Tensor)))
        ctx.others = [value for value in saved if not isinstance(value, torch.Tensor)]

    def with_keywords(ctx: Any, inputs: tuple[Any, ...], keyword_only_inputs: dict[str, Any], output: Any) -> None:
        remember(ctx, op.bind(inputs, keyword_only_inputs), output)

    def without_keywords(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        remember(ctx, op.bind(inputs, {}), output)

    return with_keywords if any(a.keyword_only for a in op.arguments) else without_keywords


def _backward(op: Op) -> Callable[..., Any]:
    positional = sum(not a.keyword_only for a in op.arguments)

    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        if op.gradient is None:
            raise InvalidInput(f"{op.name} has no gradient.", do="Call it on tensors that don't require one, or under torch.no_grad().")
        tensors, others = iter(ctx.saved_tensors), iter(ctx.others)
        saved = tuple(next(tensors) if is_tensor else next(others) for is_tensor in ctx.is_tensor)
        return op.gradient.backward(saved, grads)[:positional]

    return backward
