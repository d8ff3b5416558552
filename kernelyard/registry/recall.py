"""The quick way to what serves a call again: a test made for one signature, its tensors compared by torch's own guard in C++.

A signature as a tuple is hashed and looked up, which allocates and takes several times as long: for two tensors 3.4 us where this test
takes 0.9 (one slow core). The guard is the one that torch.compile has for its inputs: type, dtype, device, shape, strides, dispatch
keys (autocast, inference mode, transforms, pending negation) and whether a gradient is due.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from kernelyard.registry.schema import Argument

Fits = Callable[..., bool]

_PLAIN = (torch.Tensor, torch.nn.Parameter)

try:
    from torch._C._dynamo.guards import TensorGuards as _guards
except ImportError:  # no promise of torch: without it every call looks its signature up
    _guards = None  # type: ignore[assignment,misc]


def fits(arguments: Sequence[Argument], args: Sequence[Any], outs: Sequence[torch.Tensor] = ()) -> Fits | None:
    """A function of (*args, *outs): whether what the choice of a kernel may depend on is as it is here. None where torch can't tell.

    With `outs` it also says whether they lie as they do here: each beside the other tensors, or at the very address of one.
    """
    names = [*(argument.name for argument in arguments), *(f"out{i}" for i in range(len(outs)))]
    values = dict(zip(names, (*args, *outs), strict=True))
    tensors = {name: value for name, value in values.items() if isinstance(value, torch.Tensor)}
    if _guards is None or not all(map(_plain, tensors.values())):
        return None
    sizes, strides = [list(t.shape) for t in tensors.values()], [list(t.stride()) for t in tensors.values()]
    guard = _guards(*tensors.values(), dynamic_dims_sizes=sizes, dynamic_dims_strides=strides)  # type: ignore[arg-type]  # as torch gives them
    known: dict[str, Any] = {"_same": guard.check}
    tests = [f"_same({', '.join(tensors)})"]
    for name, value in values.items():
        if isinstance(value, torch.Tensor):
            tests.append(f"{'' if value.data_ptr() % 16 else 'not '}({name}_at := {name}.data_ptr()) & 15")
        else:
            known |= {f"_{name}": value, f"_{name}_type": type(value)}
            tests.append(f"{name}.__class__ is _{name}_type and {name} == _{name}")
    if any(tensor.requires_grad for tensor in tensors.values()):  # the guard looks at the tensor's flag alone
        known["_grad_enabled"] = torch.is_grad_enabled
        tests.append(f"_grad_enabled() is {torch.is_grad_enabled()}")
    tests += _places(tensors, len(outs))
    return eval(f"lambda {', '.join(names)}: {' and '.join(tests)}", known)  # type: ignore[no-any-return]  # names were checked by parse_schema


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
            clear = f"({names[i]}_at >= {other}_at + {extent(tensor)} or {other}_at >= {names[i]}_at + {extent(out)})"
            tests.append(f"{names[i]}_at == {other}_at" if same else clear)
    return tests


def extent(tensor: torch.Tensor) -> int:
    """Bytes from a tensor's first element to the end of its last one; strides are never negative."""
    if tensor.numel() == 0:
        return 0
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return (last + 1) * tensor.element_size()
