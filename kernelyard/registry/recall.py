"""The quick way to what serves a call again: a test made for one signature, its tensors compared by torch's own guard in C++.

A signature as a tuple is hashed and looked up, which allocates and takes several times as long: for two tensors 3.4 us where this test
takes 0.9 (one slow core). A callable that can test by itself (`behind`: a call made from C++) does so in half of that.

The guard is the one that torch.compile has for its inputs: type, dtype, device, shape, strides, dispatch keys (autocast, inference mode,
transforms, pending negation) and whether a gradient is due.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import torch

from kernelyard.registry.schema import Argument, defaults, parameters

Serving = Callable[..., Any]
Relation = tuple[str, str, bool, int, int]
"""Two tensors, whether they are at the same address, else clear of each other; bytes that each one reaches."""

_PLAIN = (torch.Tensor, torch.nn.Parameter)

try:
    from torch._C._dynamo.guards import TensorGuards as _guards
except ImportError:  # no promise of torch: without it every call looks its signature up
    _guards = None  # type: ignore[assignment,misc]


def serving(
    arguments: Sequence[Argument], args: Sequence[Any], run: Callable[..., Any], outs: Sequence[torch.Tensor] = ()
) -> Serving | None:
    """A function with the op's parameters: what `run` returns where the call is like this one, None where not.

    A call is like another where what the choice of a kernel may depend on is as it was. With `outs` the function's first parameter is
    `out`; it also sees to it that they lie as they do here, each beside the other tensors or at the very address of one, and returns
    True. None where torch can't tell.
    """
    many = ["_out"] if len(outs) == 1 else [f"_out[{i}]" for i in range(len(outs))]
    tensors = {a.name: value for a, value in zip(arguments, args, strict=True) if isinstance(value, torch.Tensor)}
    tensors = dict(zip(many, outs, strict=True)) | tensors
    if _guards is None or not all(map(_plain, tensors.values())):
        return None
    first = {id(t): name for name, t in reversed(tensors.items())}
    once = {first[id(t)]: t for t in tensors.values()}  # the guard takes no tensor twice
    sizes, strides = [list(t.shape) for t in once.values()], [list(t.stride()) for t in once.values()]
    guard = _guards(*once.values(), dynamic_dims_sizes=sizes, dynamic_dims_strides=strides)  # type: ignore[arg-type]  # as torch gives them
    same = [(name, first[id(t)]) for name, t in tensors.items() if name not in once]
    scalars = {a.name: value for a, value in zip(arguments, args, strict=True) if a.name not in tensors}
    relations = _relations(tensors, many)
    test, known = _expression(tensors, tuple(once), same, scalars, relations, len(outs))
    serve = _in_python(arguments, test, known | {"_same": guard.check, "_run": run}, len(outs))
    behind = getattr(run, "behind", None)
    if behind is None or any(tensor.requires_grad for tensor in tensors.values()):
        return serve
    at = {name: i for i, name in enumerate((*many, *(a.name for a in arguments)))}
    return behind(  # type: ignore[no-any-return]
        serve, guard.check, tuple(at[name] for name in once), tuple((at[one], at[other]) for one, other in same),
        tuple((at[name], t.data_ptr() % 16 == 0) for name, t in tensors.items()), tuple(scalars.get(a.name) for a in arguments),
        tuple(... if a.required else a.default for a in arguments), sum(not a.keyword_only for a in arguments),
        tuple((at[one], at[other], *rest) for one, other, *rest in relations),
    )  # fmt: skip


def _in_python(arguments: Sequence[Argument], test: str, known: dict[str, Any], outs: int) -> Serving:
    given = ", ".join(argument.name for argument in arguments)
    known |= {"_d": defaults(arguments), "_tuple": tuple, "_len": len}
    if outs:
        told = ("(_out,)" if outs == 1 else "_out") + (", " if given else "")
        source = f"lambda _out, {parameters(arguments)}: (_run({told}{given}) or True) if {test} else None"
    else:
        source = f"lambda {parameters(arguments)}: _run({given}) if {test} else None"
    return eval(source, known)  # type: ignore[no-any-return]  # names were checked by parse_schema


def _expression(
    tensors: dict[str, torch.Tensor], once: Sequence[str], same: Sequence[tuple[str, str]], scalars: dict[str, Any],
    relations: Sequence[Relation], outs: int,
) -> tuple[str, dict[str, Any]]:  # fmt: skip
    """The test as Python, and what its names mean."""
    known: dict[str, Any] = {}
    tests = [f"_out.__class__ is _tuple and _len(_out) == {outs}"] if outs > 1 else []
    tests += [f"{one} is {other}" for one, other in same]
    tests.append(f"_same({', '.join(once)})")
    tests += [f"{'' if t.data_ptr() % 16 else 'not '}({_address(name)} := {name}.data_ptr()) & 15" for name, t in tensors.items()]
    for name, value in scalars.items():
        known |= {f"_{name}": value, f"_{name}_type": type(value)}
        tests.append(f"{name}.__class__ is _{name}_type and {name} == _{name}")
    if any(tensor.requires_grad for tensor in tensors.values()):  # the guard looks at the tensor's flag alone
        known["_grad_enabled"] = torch.is_grad_enabled
        tests.append(f"_grad_enabled() is {torch.is_grad_enabled()}")
    for one, other, together, extent, extent_other in relations:
        here, there = _address(one), _address(other)
        clear = f"({here} >= {there} + {extent_other} or {there} >= {here} + {extent})"
        tests.append(f"{here} == {there}" if together else clear)
    return " and ".join(tests), known


def _address(name: str) -> str:
    return re.sub(r"\W", "_", name) + "_at"


def _plain(tensor: torch.Tensor) -> bool:
    """Whether it has an address: no subclass, not sparse, not under a transform."""
    wrapped = torch._C._functorch.is_functorch_wrapped_tensor(tensor)
    return type(tensor) in _PLAIN and tensor.layout is torch.strided and not tensor.is_meta and not wrapped


def _relations(tensors: dict[str, torch.Tensor], outs: Sequence[str]) -> list[Relation]:
    """That every output is where it is here: at the address of another tensor, or clear of it."""
    found = []
    for i, out in enumerate(outs):
        for name, tensor in tensors.items():
            if name not in outs[: i + 1]:
                one = tensors[out]
                found.append((out, name, one.data_ptr() == tensor.data_ptr(), extent(one), extent(tensor)))
    return found


def extent(tensor: torch.Tensor) -> int:
    """Bytes from a tensor's first element to the end of its last one; strides are never negative."""
    if tensor.numel() == 0:
        return 0
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return (last + 1) * tensor.element_size()
