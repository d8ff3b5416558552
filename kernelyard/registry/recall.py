"""The quick way to what serves a call again: a test made for one signature, its tensors compared by torch's own guard in C++.

A signature as a tuple is hashed and looked up, which allocates and takes several times as long: for two tensors 3.4 us where this test
takes 0.9 (one slow core). The guard is the one that torch.compile has for its inputs: type, dtype, device, shape, strides, dispatch
keys (autocast, inference mode, transforms, pending negation) and whether a gradient is due.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import torch

from kernelyard.registry.schema import Argument, defaults, parameters

Serving = Callable[..., Any]

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
    test, known = _test(arguments, args, outs)
    if test is None:
        return None
    given = ", ".join(argument.name for argument in arguments)
    known |= {"_run": run, "_d": defaults(arguments), "_tuple": tuple, "_len": len}
    if outs:
        told = ("(_out,)" if len(outs) == 1 else "_out") + (", " if given else "")
        source = f"lambda _out, {parameters(arguments)}: (_run({told}{given}) or True) if {test} else None"
    else:
        source = f"lambda {parameters(arguments)}: _run({given}) if {test} else None"
    return eval(source, known)  # type: ignore[no-any-return]  # names were checked by parse_schema


def _test(arguments: Sequence[Argument], args: Sequence[Any], outs: Sequence[torch.Tensor]) -> tuple[str | None, dict[str, Any]]:
    """The test as an expression, and what its names mean."""
    many = ["_out"] if len(outs) == 1 else [f"_out[{i}]" for i in range(len(outs))]
    tensors = {a.name: value for a, value in zip(arguments, args, strict=True) if isinstance(value, torch.Tensor)}
    tensors |= dict(zip(many, outs, strict=True))
    if _guards is None or not all(map(_plain, tensors.values())):
        return None, {}
    first = {id(t): name for name, t in reversed(tensors.items())}
    once = {name: tensors[name] for name in reversed(first.values())}  # the guard takes no tensor twice
    sizes, strides = [list(t.shape) for t in once.values()], [list(t.stride()) for t in once.values()]
    guard = _guards(*once.values(), dynamic_dims_sizes=sizes, dynamic_dims_strides=strides)  # type: ignore[arg-type]  # as torch gives them
    known: dict[str, Any] = {"_same": guard.check}
    tests = [f"_out.__class__ is _tuple and _len(_out) == {len(outs)}"] if len(outs) > 1 else []
    tests += [f"{name} is {first[id(t)]}" for name, t in tensors.items() if name not in once]
    tests.append(f"_same({', '.join(once)})")
    tests += [f"{'' if t.data_ptr() % 16 else 'not '}({_address(name)} := {name}.data_ptr()) & 15" for name, t in tensors.items()]
    for a, value in zip(arguments, args, strict=True):
        if a.name not in tensors:
            known |= {f"_{a.name}": value, f"_{a.name}_type": type(value)}
            tests.append(f"{a.name}.__class__ is _{a.name}_type and {a.name} == _{a.name}")
    if any(tensor.requires_grad for tensor in tensors.values()):  # the guard looks at the tensor's flag alone
        known["_grad_enabled"] = torch.is_grad_enabled
        tests.append(f"_grad_enabled() is {torch.is_grad_enabled()}")
    return " and ".join(tests + _places(tensors, len(outs))), known


def _address(name: str) -> str:
    return re.sub(r"\W", "_", name) + "_at"


def _plain(tensor: torch.Tensor) -> bool:
    """Whether it has an address: no subclass, not sparse, not under a transform."""
    wrapped = torch._C._functorch.is_functorch_wrapped_tensor(tensor)
    return type(tensor) in _PLAIN and tensor.layout is torch.strided and not tensor.is_meta and not wrapped


def _places(tensors: dict[str, torch.Tensor], outs: int) -> list[str]:
    """That every output is where it is here: at the address of another tensor, or clear of it."""
    names = list(tensors)
    tests = []
    for i in range(len(names) - outs, len(names)):
        for other in names[:i]:
            out, tensor = tensors[names[i]], tensors[other]
            same = out.data_ptr() == tensor.data_ptr()
            here, there = _address(names[i]), _address(other)
            clear = f"({here} >= {there} + {extent(tensor)} or {there} >= {here} + {extent(out)})"
            tests.append(f"{here} == {there}" if same else clear)
    return tests


def extent(tensor: torch.Tensor) -> int:
    """Bytes from a tensor's first element to the end of its last one; strides are never negative."""
    if tensor.numel() == 0:
        return 0
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return (last + 1) * tensor.element_size()
