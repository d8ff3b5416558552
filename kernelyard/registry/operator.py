"""The operators that people call. Each chooses a kernel once for a signature, then runs what it bound.

A call with plain tensors and no gradient goes straight to the bound kernel. Whatever torch must see (autograd, compilation,
autocast, transforms, tracing modes, meta tensors) goes through the op's torch.library operator, which ends in `run`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch.autograd import forward_ad

from kernelyard.errors import InvalidInput, UsageError
from kernelyard.registry import outputs, recall, registry, torch_ops
from kernelyard.registry.backend import Executable
from kernelyard.registry.capture import counting
from kernelyard.registry.dispatch import bind
from kernelyard.registry.op import Op
from kernelyard.registry.pins import Served, active
from kernelyard.registry.schema import binder, signer

MOST_TESTS = 8
"""Quick tests tried one after the other before the signature is looked up."""
MOST_TESTS_MADE = 64
"""Making a test costs dozens of look-ups: with ever new signatures no more are made."""

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

    def __call__(self, *args: Any, out: Any = None, **kwargs: Any) -> Any:
        """Run the op, into `out` (a tensor, or one for each result) where it is given; raises InvalidInput for what breaks its contract."""
        if _is_compiling():
            result = self._torch_op(*args, **kwargs)
            return result if out is None else _copied(result, out)
        if not _modes() and forward_ad._current_level < 0:
            served = active().served[self.__name__]
            try:
                if out is None:
                    for serve in served.calls:
                        if (result := serve(*args, **kwargs)) is not None:
                            return result
                else:
                    for serve in served.writes:
                        if serve(out, *args, **kwargs):
                            return out
            except TypeError:
                self.op.bind(args, kwargs)  # raises where the arguments are not the op's, and says which
                raise
        return self._slowly(args, kwargs, out)

    def _slowly(self, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> Any:
        """A call that no test knows."""
        try:
            bound = self._bind(*args, **kwargs)
        except TypeError:
            bound = self.op.bind(args, kwargs)  # raises, and says which argument
        if _modes() or forward_ad._current_level >= 0:
            return self._by_torch(*bound) if out is None else _copied(self._by_torch(*bound), out)
        return self._call(bound) if out is None else self._write(bound, out)

    def run(self, *args: Any) -> Any:
        """Run on plain tensors, all arguments in schema order; what the torch.library operator calls."""
        key, served = self._signature(False, *args), active().served[self.op.name]
        return (served.bound.get(key) or self._choose(served, key, args)).call(*args)

    def _call(self, bound: tuple[Any, ...]) -> Any:
        """What serves a call by its signature, else is chosen now.

        It is kept where it was looked for: a table that was dropped meanwhile (pins forget, a capture begins) keeps what is out of date.
        """
        served = active().served[self.op.name]
        found = self._serving(served, bound)
        self._remember(served, "calls", found.call, bound)
        return found.call(*bound)

    def _write(self, bound: tuple[Any, ...], out: Any) -> Any:
        """A call into given tensors; the kernel writes there itself where it can."""
        outs = outputs.as_tuple(self.op, out)
        self.op.check(bound)
        outputs.refuse_gradients(self.op, bound, outs)
        outputs.check(self.op, bound, outs)
        served = active().served[self.op.name]
        with torch.no_grad():  # none is due, and so a parameter among the arguments is as good as a tensor
            found = self._serving(served, bound)
        into = found.into or _copying(found.call)
        self._remember(served, "writes", into, bound, outs)
        into(outs, *bound)
        return out

    def _serving(self, served: Served, bound: tuple[Any, ...]) -> Executable:
        if _autocast_enabled():
            return Executable(self._by_torch)
        try:
            key = self._signature(_grad_enabled(), *bound)
            found = served.bound.get(key)
        except (AttributeError, TypeError):  # no tensor where one belongs, a list where a number does
            self.op.check(bound)
            raise
        except RuntimeError:  # a wrapped tensor (vmap) has no address, a sparse one no strides
            self._refuse_sparse(bound)
            return Executable(self._by_torch)
        return found or self._choose(served, key, bound)

    def _remember(
        self, served: Served, kind: str, run: Callable[..., Any], bound: tuple[Any, ...], outs: tuple[torch.Tensor, ...] = ()
    ) -> None:
        """Have the next such call recognised by a test of its own."""
        if served.tests_made < MOST_TESTS_MADE and (serve := recall.serving(self.op.arguments, bound, run, outs)):
            served.tests_made += 1
            setattr(served, kind, (serve, *getattr(served, kind))[:MOST_TESTS])

    def _choose(self, served: Served, key: tuple[Any, ...], args: tuple[Any, ...]) -> Executable:
        """Select, build and remember what serves a signature."""
        op = registry.current().op(self.op.name)
        if op.schema != self.op.schema:
            raise UsageError(f"{op.name} is another op since plugins changed.", do=f"Take kernelyard.ops.{op.name} anew.")
        op.check(args)
        gradient_due = key[0]
        if gradient_due and op.mutated:
            asked = f"{op.name} writes into {', '.join(op.mutated)} and has no gradient."
            raise InvalidInput(asked, do="Call it on tensors that don't require one, or under torch.no_grad().")
        aside = gradient_due or not all(args[i] is None or _plain(args[i]) for i in self._tensors)
        found = Executable(self._by_torch) if aside else counting(*bind(op, op.workload_of(args)))
        served.bound[key] = found
        return found

    def _by_torch(self, *bound: Any) -> Any:
        """Through the dispatcher, which resolves or refuses what a kernel can't know of."""
        if forward_ad._current_level >= 0:
            self._refuse_tangents(bound)
        names = [argument.name for argument in self.op.arguments[self._positional :]]
        return self._torch_op(*bound[: self._positional], **dict(zip(names, bound[self._positional :], strict=True)))

    def _refuse_sparse(self, bound: tuple[Any, ...]) -> None:
        for i in self._tensors:
            if isinstance(bound[i], torch.Tensor) and bound[i].layout is not torch.strided:
                name, layout = self.op.arguments[i].name, str(bound[i].layout).removeprefix("torch.")
                raise InvalidInput(f"{self.op.name}: {name} has layout {layout}.", do=f"Give it dense: {name}.to_dense().")

    def _refuse_tangents(self, bound: tuple[Any, ...]) -> None:
        """torch.library would drop a tangent in silence: the derivative would be wrong."""
        for i in self._tensors:
            if bound[i] is not None and forward_ad.unpack_dual(bound[i]).tangent is not None:  # type: ignore[no-untyped-call]
                raise InvalidInput(f"{self.op.name} has no forward-mode derivative.", do="Use reverse mode.")

    def __repr__(self) -> str:
        return f"<kernelyard op {self.op.name}{self.op.schema}>"


def _copying(call: Callable[..., Any]) -> Callable[..., None]:
    """`into` of a kernel that allocates its results itself."""

    def into(outs: tuple[torch.Tensor, ...], *args: Any) -> None:
        _copied(call(*args), outs)

    return into


def _copied(result: Any, out: Any) -> Any:
    """`out`, with the result in it."""
    results = result if isinstance(result, tuple) else (result,)
    for given, made in zip(out if isinstance(out, tuple | list) else (out,), results, strict=True):
        given.copy_(made)
    return out


def _plain(tensor: torch.Tensor) -> bool:
    """Whether what lies at its address are its values: not for meta tensors, pending negations and subclasses such as fake tensors."""
    subclass = type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__
    return not (tensor.is_meta or tensor.is_neg() or subclass)


registry.on_reset.append(_made.clear)  # plugins have changed, and with them perhaps what a name means
