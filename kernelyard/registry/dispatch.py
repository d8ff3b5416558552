"""Selection and dispatch: which kernel serves a call, why, and the bound callable that then runs.

Order: pinned by the caller (`use`, or KERNELYARD_USE="rmsnorm=cpp.onepass") -> the stored choice -> declared
priority, each kernel followed by its declared fallbacks -> the op's fallback. A kernel of negative priority serves only
when pinned or chosen. A signature is chosen for once; a change of pins, choices or plugins drops what was chosen.
"""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from kernelyard.errors import BuildFailed, Unsupported, UsageError
from kernelyard.registry import choices, registry
from kernelyard.registry.kernel import Kernel
from kernelyard.registry.op import Op
from kernelyard.registry.registry import Registry
from kernelyard.registry.spec import Answer, Choice, Config, Determinism, Workload, no

Bound = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Rejected:
    """A kernel that was not selected, and why."""

    kernel: str
    reason: str


@dataclass(frozen=True, slots=True)
class Selection:
    """What dispatch picked for a workload, why, and why not the others that came before it."""

    op: str
    workload: Workload
    kernel: Kernel
    config: Config
    reason: str
    rejected: tuple[Rejected, ...] = ()


@dataclass(frozen=True)
class Pins:
    """What the caller insists on, and the bound callables chosen under it: op -> signature -> callable."""

    kernels: tuple[tuple[str, str], ...] = ()
    deterministic: bool = False
    bound: dict[str, dict[Any, Bound]] = field(default_factory=dict, compare=False, repr=False)

    def table(self, op: str) -> dict[Any, Bound]:
        """Signature -> bound callable of one op."""
        return self.bound.setdefault(op, {})


_known: dict[tuple[tuple[tuple[str, str], ...], bool], Pins] = {}


def _pins(kernels: tuple[tuple[str, str], ...], deterministic: bool) -> Pins:
    """One Pins object for equal pins, so that entering `use` again finds its table warm."""
    return _known.setdefault((kernels, deterministic), Pins(kernels, deterministic))


_active: ContextVar[Pins | None] = ContextVar("kernelyard_pins", default=None)
_environment: Pins | None = None


def active() -> Pins:
    """The pins in force here: those of the innermost `use`, else the environment's."""
    return _active.get() or _from_environment()


def _from_environment() -> Pins:
    global _environment
    if _environment is None:
        pairs = {}
        for word in filter(None, (w.strip() for w in os.environ.get("KERNELYARD_USE", "").split(","))):
            op, equals, kernel = word.partition("=")
            if not equals:
                raise UsageError(f"KERNELYARD_USE has '{word}'.", do="Write op=kernel, such as rmsnorm=torch.eager.")
            registry.current().kernel(op, kernel)
            pairs[op] = kernel
        _environment = _pins(tuple(sorted(pairs.items())), False)
    return _environment


@contextlib.contextmanager
def use(*, deterministic: bool | None = None, **kernels: str) -> Iterator[None]:
    """Pin kernels by op name for calls inside: `with kernelyard.use(rmsnorm="torch.eager"):`.

    A pinned kernel that can't run raises Unsupported with the reason. `deterministic=True` leaves only kernels
    that give the same bits from run to run. Inner pins add to outer ones. Raises UnknownName at once.
    """
    for op, kernel in kernels.items():
        registry.current().kernel(op, kernel)
    outer = active()
    merged = tuple(sorted({**dict(outer.kernels), **kernels}.items()))
    token = _active.set(_pins(merged, outer.deterministic if deterministic is None else deterministic))
    try:
        yield
    finally:
        _active.reset(token)


def forget() -> None:
    """Drop everything chosen: pins, choices or plugins have changed."""
    global _environment
    _environment = None
    for pins in _known.values():
        pins.bound.clear()


registry.on_reset.append(forget)


# Selection --------------------------------------------------------------------------------------------


def select(op: Op, workload: Workload) -> Selection:
    """The kernel that serves a workload now, without building it; raises Unsupported for a pin that can't run."""
    return next(_candidates(op, workload, registry.current(), active(), []))


def bind(op: Op, workload: Workload) -> tuple[Selection, Bound]:
    """Select and build. A kernel that fails to build is passed over with a warning, unless it was pinned."""
    table, pins, rejected = registry.current(), active(), list[Rejected]()
    for selection in _candidates(op, workload, table, pins, rejected):
        try:
            return selection, table.build(selection.kernel, workload, selection.config).call
        except BuildFailed as error:
            if op.name in dict(pins.kernels):
                raise
            rejected.append(Rejected(selection.kernel.name, f"does not build: {error.asked}"))
            warnings.warn(f"kernelyard: {op.name} on {workload.label()}: {selection.kernel.name} does not build ({error.asked}); "
                          "the next kernel serves. `kernelyard explain` tells more.", RuntimeWarning, stacklevel=4)  # fmt: skip
    raise Unsupported(f"no kernel of {op.name} can run {workload.key()}.", exists="; ".join(f"{r.kernel}: {r.reason}" for r in rejected))


def _candidates(op: Op, workload: Workload, table: Registry, pins: Pins, rejected: list[Rejected]) -> Iterator[Selection]:
    """Selections in the order they should be tried; what is passed over is added to `rejected`."""
    pinned = dict(pins.kernels).get(op.name)
    if pinned is not None:
        yield _pinned(op, workload, table, pins, pinned)
        return
    chosen = choices.find(workload)
    if chosen is not None:
        answer = _serves(chosen, op, workload, table, pins)
        if answer:
            kernel = table.kernel(op.name, chosen.kernel)
            yield Selection(op.name, workload, kernel, chosen.config, f"stored choice{_by(chosen.run_id)}", tuple(rejected))
        else:
            rejected.append(Rejected(chosen.kernel, f"stored choice, {answer.reason}"))
    tried = set[str]()
    for kernel in _by_priority(op, table):
        if kernel.name in tried:
            continue
        tried.add(kernel.name)
        answer = _can(table, kernel, workload, pins)
        if not answer:
            rejected.append(Rejected(kernel.name, answer.reason))
            continue
        last = kernel.name == op.fallback
        reason = "the op's fallback: no other kernel can" if last else f"not tuned; highest priority ({kernel.priority}) that can"
        yield Selection(op.name, workload, kernel, _untuned(kernel, workload), reason, tuple(rejected))
    listed = "; ".join(f"{r.kernel}: {r.reason}" for r in rejected)
    raise Unsupported(f"no kernel of {op.name} can run {workload.key()}.", exists=listed)


def _serves(chosen: Choice, op: Op, workload: Workload, table: Registry, pins: Pins) -> Answer:
    """Whether a stored choice still holds, can run here, and keeps its kernel's constraints."""
    if not (answer := choices.holds(chosen, op, table)):
        return answer
    kernel = table.kernel(op.name, chosen.kernel)
    return _can(table, kernel, workload, pins) and kernel.space.allows(chosen.config, workload)


def _by(run_id: str) -> str:
    return f" of run {run_id}" if run_id else ""


def _pinned(op: Op, workload: Workload, table: Registry, pins: Pins, name: str) -> Selection:
    kernel = table.kernel(op.name, name)
    if not (answer := _can(table, kernel, workload, pins)):
        raise Unsupported(
            f"{op.name} is pinned to {name}, which can't run {workload.label()}: {answer.reason}.", do="Unpin it or change the call."
        )
    chosen = choices.find(workload)
    if chosen is not None and chosen.kernel == name and _serves(chosen, op, workload, table, pins):
        return Selection(op.name, workload, kernel, chosen.config, "pinned by the caller, with its stored config")
    return Selection(op.name, workload, kernel, _untuned(kernel, workload), "pinned by the caller")


def _untuned(kernel: Kernel, workload: Workload) -> Config:
    return kernel.space.default_for(workload)


def _by_priority(op: Op, table: Registry) -> Iterator[Kernel]:
    """Kernels of priority >= 0, each followed by its fallbacks; the op's fallback last."""
    kernels = table.by_op.get(op.name, {})
    for kernel in table.kernels(op.name):
        if kernel.priority >= 0 and kernel.name != op.fallback:
            yield kernel
            yield from (kernels[name] for name in kernel.fallbacks if name in kernels and name != op.fallback)
    if op.fallback in kernels:
        yield kernels[op.fallback]


def _can(table: Registry, kernel: Kernel, workload: Workload, pins: Pins) -> Answer:
    if pins.deterministic and kernel.determinism is Determinism.NONE:
        return no("determinism was asked for and it declares none")
    return table.can_run(kernel, workload.device) and kernel.support.fits(workload)


# The operator that people call ------------------------------------------------------------------------


class Operator:
    """One op as a function. Chooses a kernel for each new signature, then runs what it bound."""

    def __init__(self, op: Op) -> None:
        import torch

        from kernelyard.registry import torch_ops

        self.op = op
        self.__name__, self.__doc__ = op.name, f"{op.summary}\n\n{op.usage()}"
        self._tensors = tuple(i for i, argument in enumerate(op.arguments) if argument.tensor)
        self._compiling = torch.compiler.is_compiling
        self._grad_enabled = torch.is_grad_enabled
        self._torch_op = torch_ops.register(op, self.run)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._compiling():
            return self._torch_op(*args, **kwargs)
        bound = self.op.bind(args, kwargs)
        if self._grad_enabled() and any(bound[i] is not None and bound[i].requires_grad for i in self._tensors):
            return self._torch_op(*args, **kwargs)
        try:
            key = self.signature(bound)
        except RuntimeError:  # a wrapped tensor (vmap, fake) has no address: torch decides
            return self._torch_op(*args, **kwargs)
        return self._lookup(key, bound)(*bound)

    def run(self, *args: Any) -> Any:
        """Run on plain tensors, all arguments in schema order."""
        return self._lookup(self.signature(args), args)(*args)

    def signature(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """What a choice depends on: shape, strides, dtype, device, 16-byte alignment; the value of every scalar."""
        return tuple(
            (value.shape, value.stride(), value.dtype, value.device, value.data_ptr() % 16 == 0)
            if i in self._tensors and value is not None
            else value
            for i, value in enumerate(args)
        )

    def _lookup(self, key: tuple[Any, ...], args: tuple[Any, ...]) -> Bound:
        table = active().table(self.op.name)
        found = table.get(key)
        if found is None:
            found = table[key] = self._choose(args)
        return found

    def _choose(self, args: tuple[Any, ...]) -> Bound:
        for i in self._tensors:
            if args[i] is not None and not hasattr(args[i], "data_ptr"):
                raise UsageError(
                    f"{self.op.name}: argument '{self.op.arguments[i].name}' is {type(args[i]).__name__}, not a tensor.", do=self.op.usage()
                )
        self.op.validate(*args)
        return bind(self.op, self.op.workload_of(args))[1]

    def __repr__(self) -> str:
        return f"<kernelyard op {self.op.name}{self.op.schema}>"
