"""The operators that people call. Each chooses a kernel once for a signature, then runs what it bound.

A call with plain tensors and no gradient goes straight to the bound kernel. Whatever torch must see (autograd, compilation,
autocast, transforms, tracing modes, meta tensors) goes through the op's torch.library operator, which ends in `run`.
"""

from __future__ import annotations

import threading
from typing import Any

import torch
from torch.autograd import forward_ad

from kernelyard.errors import InvalidInput, UsageError
from kernelyard.registry import registry, torch_ops
from kernelyard.registry.dispatch import bind
from kernelyard.registry.op import Op
from kernelyard.registry.pins import Bound, active
from kernelyard.registry.schema import binder, signer

_made: dict[str, Operator] = {}
_lock = threading.RLock()

_is_compiling, _grad_enabled = torch.compiler.is_compiling, torch.is_grad_enabled
_autocast_enabled, _modes = torch._C._is_any_autocast_enabled, torch._C._len_torch_dispatch_stack


def operator(name: str) -> Operator:
    """The operator of a registered op, made when it is first asked for; raises UnknownName."""
    found = _made.get(name)
    if found is None:
        op = registry.current().op(name)
        with _lock:  # torch knows one operator of a name: two threads must not both define it
            found = _made.get(name) or _made.setdefault(name, Operator(op))
    return found


class Operator:
    """One op as a function."""

    def __init__(self, op: Op) -> None:
        self.op = op
        self.__name__, self.__doc__ = op.name, f"{op.summary}\n\n{op.usage()}"
        self._positional = sum(not argument.keyword_only for argument in op.arguments)
        self._tensors = tuple(i for i, argument in enumerate(op.arguments) if argument.tensor)
        self._bind, self._signature = binder(op.arguments), signer(op.arguments)
        self._torch_op = torch_ops.register(op, self.run)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the op; raises InvalidInput for arguments that break its contract."""
        if _is_compiling():
            return self._torch_op(*args, **kwargs)
        try:
            bound = self._bind(*args, **kwargs)
        except TypeError:
            bound = self.op.bind(args, kwargs)  # raises, and says which argument
        if _autocast_enabled() or _modes() or forward_ad._current_level >= 0:
            return self._by_torch(*bound)
        try:
            key = self._signature(_grad_enabled(), *bound)
            found = active().bound[self.op.name].get(key)
        except (AttributeError, TypeError):  # no tensor where one belongs, a list where a number does
            self.op.check(bound)
            raise
        except RuntimeError:  # a wrapped tensor (vmap, sparse) has no address
            return self._by_torch(*bound)
        return (found or self._choose(key, bound))(*bound)

    def run(self, *args: Any) -> Any:
        """Run on plain tensors, all arguments in schema order; what the torch.library operator calls."""
        key = self._signature(False, *args)
        return (active().bound[self.op.name].get(key) or self._choose(key, args))(*args)

    def _choose(self, key: tuple[Any, ...], args: tuple[Any, ...]) -> Bound:
        """Select, build and remember what serves a signature."""
        op = registry.current().op(self.op.name)
        if op.schema != self.op.schema:
            raise UsageError(f"{op.name} is another op since plugins changed.", do=f"Take kernelyard.ops.{op.name} anew.")
        op.check(args)
        gradient_due = key[0]
        aside = gradient_due or not all(args[i] is None or _plain(args[i]) for i in self._tensors)
        bound = self._by_torch if aside else bind(op, op.workload_of(args))[1]
        active().bound[op.name][key] = bound
        return bound

    def _by_torch(self, *bound: Any) -> Any:
        """Through the dispatcher, which resolves or refuses what a kernel can't know of."""
        if forward_ad._current_level >= 0:
            self._refuse_tangents(bound)
        names = [argument.name for argument in self.op.arguments[self._positional :]]
        return self._torch_op(*bound[: self._positional], **dict(zip(names, bound[self._positional :], strict=True)))

    def _refuse_tangents(self, bound: tuple[Any, ...]) -> None:
        """torch.library would drop a tangent in silence: the derivative would be wrong."""
        for i in self._tensors:
            if bound[i] is not None and forward_ad.unpack_dual(bound[i]).tangent is not None:  # type: ignore[no-untyped-call]
                raise InvalidInput(f"{self.op.name} has no forward-mode derivative.", do="Use reverse mode.")

    def __repr__(self) -> str:
        return f"<kernelyard op {self.op.name}{self.op.schema}>"


def _plain(tensor: torch.Tensor) -> bool:
    """Whether what lies at its address are its values: not for meta tensors, pending negations and subclasses such as fake tensors."""
    subclass = type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__
    return not (tensor.is_meta or tensor.is_neg() or subclass)


registry.on_reset.append(_made.clear)  # plugins have changed, and with them perhaps what a name means
