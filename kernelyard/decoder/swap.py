"""Registered ops inside a Hugging Face model: put in by `swap`, taken out by `unswap`, on these module instances alone.

    with kernelyard.swap(model, kernels={"rmsnorm": "cpp.onepass"}) as swapped:
        model.generate(tokens)
    print(swapped)                      # which layers, which were left alone and why, and where the model's own code served

A swapped layer has a `forward` of its own, bound to the instance: no class, no function of transformers and no weight is touched, so
`state_dict`, `deepcopy`, `train`, `to` and hooks are what they were, and taking it away leaves the model as it was, bit for bit. Layers
are known by the exact classes of Llama, Qwen2 and Mistral and checked by what they have, not by a version of transformers; all others
are left alone and listed. What a call asks that an op has not (a mask with padding, a gradient of attention) is served by the model's
own code and counted.

Swapping twice is refused: two sets of pins on one layer would leave it open which of them serves.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import MethodType

from torch import nn

from kernelyard.decoder.swap_layers import OPS, Forward, Made, fit
from kernelyard.decoder.swap_report import Fallbacks, Layer, Left, Swap
from kernelyard.decoder.swap_serving import serving
from kernelyard.errors import InvalidInput, UnknownName, UsageError
from kernelyard.registry import registry

MARK = "kernelyard_swap"
"""The attribute by which a forward of ours is known: the `Fallbacks` of its swap."""


def swap(model: nn.Module, *, ops: Iterable[str] | None = None, kernels: Mapping[str, str] | None = None) -> Swap:
    """Have registered ops serve in a Llama, Qwen2 or Mistral of transformers; undone by `unswap`, by `.restore()`, or by leaving `with`.

    ops      of rmsnorm, add_rmsnorm, swiglu, rope, attention and attention_decode; all where none are given
    kernels  kernels by op name, pinned for these layers as `kernelyard.use` pins them: Unsupported where one can't run

    Raises UnknownName, InvalidInput for what is no module, UsageError for a model with swapped layers. A model without any layer
    that is known is not an error: see `.left`.
    """
    chosen, pinned = _asked(ops, dict(kernels or {}))
    if not isinstance(model, nn.Module):
        raise InvalidInput(f"swap takes a torch.nn.Module, not {type(model).__name__}.", do="Give a model of transformers.")
    if (first := next((name for name, _, _ in _ours(model)), None)) is not None:
        raise UsageError(f"{type(model).__name__} has swapped layers already: {first}.", do="Call kernelyard.unswap(model) first.")
    fallbacks, swapped, left = Fallbacks(), [], []
    serve = {op: serving(op, pinned.get(op)) for op in chosen}
    made: Made = {}
    fits = [(name, module, fit(module, serve, fallbacks, made)) for name, module in model.named_modules()]
    for name, module, found in fits:  # all are looked at first: what a layer is must not depend on what was swapped before it
        left += [Left(name, type(module).__name__, op, reason) for op, reason in found.reasons]
        if found.forward is not None:
            _bind(module, found.forward, fallbacks)
            swapped.append(Layer(name, type(module).__name__, found.ops))
    return Swap(model, tuple(swapped), tuple(left), fallbacks, lambda: _restore(model, fallbacks, len(swapped)))


def unswap(model: nn.Module) -> None:
    """Every swapped layer of a model as it was; nothing happens to a model that has none. Works on a copy of a swapped model too."""
    for _, module, _ in list(_ours(model)):
        del module.forward


def _asked(ops: Iterable[str] | None, kernels: dict[str, str]) -> tuple[tuple[str, ...], dict[str, str]]:
    """The ops in the order of OPS, and the pins; raises UnknownName and UsageError."""
    if isinstance(ops, str):
        raise UsageError(f"ops is the string '{ops}'.", do=f"Give names in a tuple: ops=('{ops}',).")
    names = tuple(OPS if ops is None else ops)
    for name in (*names, *kernels):
        if name not in OPS:
            raise UnknownName("op that can be swapped", name, OPS)
    for op, kernel in kernels.items():
        registry.current().kernel(op, kernel)
        if op not in names:
            raise UsageError(f"kernels pins {op}, ops leaves it out.", exists=f"ops are: {', '.join(names)}.", do=f"Add {op} to ops.")
    return tuple(name for name in OPS if name in names), kernels


def _bind(module: nn.Module, forward: Forward, fallbacks: Fallbacks) -> None:
    setattr(forward, MARK, fallbacks)
    module.forward = MethodType(forward, module)


def _ours(model: nn.Module) -> Iterator[tuple[str, nn.Module, Fallbacks]]:
    """Swapped layers, each with the record of its swap."""
    for name, module in model.named_modules():
        mark = getattr(getattr(vars(module).get("forward"), "__func__", None), MARK, None)
        if mark is not None:
            yield name, module, mark


def _restore(model: nn.Module, fallbacks: Fallbacks, expected: int) -> None:
    """The layers of one swap as they were; raises UsageError where somebody has put a forward over one since."""
    restored = 0
    for _, module, mark in list(_ours(model)):
        if mark is fallbacks:
            del module.forward
            restored += 1
    if restored not in (0, expected):
        told = f"{expected - restored} of {expected} swapped layers left the model, or had their forward replaced, since the swap"
        raise UsageError(f"{told}; the others are restored.", do="Undo that (accelerate's hooks?) and call kernelyard.unswap(model).")
