"""Selection: which kernel serves a workload, with which config, why, and why not the others; then its build.

Order: pinned by the caller (see `pins`) -> the stored choice -> a bucket's rule, for shapes between measured ones -> declared
priority, each kernel followed by its declared fallbacks -> the op's fallback. A kernel of negative priority serves only when pinned
or chosen. The operator that people call, which selects once for each signature and then runs what was bound, is in `operator`.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass

from kernelyard.errors import BuildFailed, Unsupported
from kernelyard.registry import choices, misses, pins, proofs, registry, rules, selections
from kernelyard.registry.backend import Executable
from kernelyard.registry.kernel import Kernel
from kernelyard.registry.op import Op
from kernelyard.registry.pins import Pins, active
from kernelyard.registry.pins import use as use
from kernelyard.registry.registry import Registry
from kernelyard.registry.spec import YES, Answer, Choice, Config, Determinism, Missed, Workload, config_key, no


@dataclass(frozen=True, slots=True)
class Rejected:
    """A kernel that was not selected, and why."""

    kernel: str
    reason: str


@dataclass(frozen=True, slots=True)
class Selection:
    """What dispatch picked for a workload, why, and why not the others that came before it.

    `missed` says why no stored choice serves; None where one does, where the caller pinned a kernel, and without a store. `by_rule`: a
    bucket's rule picked it, which is no miss unless a choice of the very workload is stale.
    """

    op: str
    workload: Workload
    kernel: Kernel
    config: Config
    reason: str
    rejected: tuple[Rejected, ...] = ()
    missed: Missed | None = None
    by_rule: bool = False

    def __str__(self) -> str:
        config = " ".join(f"{name}={value}" for name, value in self.config.items())
        chosen = f"{self.op} {self.workload.label()}: {self.kernel.name}{f' ({config})' if config else ''}, because: {self.reason}"
        return "\n".join([chosen, *(f"  not {one.kernel}: {one.reason}" for one in self.rejected)])


_failed: dict[tuple[str, str, str], str] = {}
"""(workload key, kernel, config) -> why it did not build here: tried and warned about once in a process."""


def select(op: Op, workload: Workload) -> Selection:
    """The kernel that serves a workload now, without building it; raises Unsupported where none can or a pinned one can't."""
    return next(_candidates(op, workload, registry.current(), active(), []))


def bind(op: Op, workload: Workload) -> tuple[Selection, Executable]:
    """Select and build. A kernel that fails to build is passed over with a warning, unless it was pinned."""
    table, rejected = registry.current(), list[Rejected]()
    for selection in _candidates(op, workload, table, active(), rejected):
        try:
            built = table.build(selection.kernel, workload, selection.config)
            selections.note(selection)
            misses.note(selection)
            return selection, built
        except (BuildFailed, Unsupported) as error:
            if op.name in dict(active().kernels):
                raise
            _failed[_build_key(workload, selection.kernel, selection.config)] = error.asked
            rejected.append(Rejected(selection.kernel.name, f"does not build: {error.asked}"))
            message = f"kernelyard: {op.name} on {workload.label()}: {selection.kernel.name} does not build ({error.asked}); "
            warnings.warn(f"{message}the next kernel serves. `kernelyard.explain` tells more.", RuntimeWarning, stacklevel=7)
    raise _nothing(op, workload, rejected, active())


def forget() -> None:
    """Drop everything chosen: pins, choices or plugins have changed."""
    _failed.clear()
    pins.forget()


registry.on_reset.append(forget)


def _candidates(op: Op, workload: Workload, table: Registry, pins: Pins, rejected: list[Rejected]) -> Iterator[Selection]:
    """Selections in the order they should be tried, at least one; what is passed over is added to `rejected`."""
    pinned = dict(pins.kernels).get(op.name)
    if pinned is not None:
        yield _pinned(op, workload, table, pins, pinned)
        return
    yield from _chosen(op, workload, table, pins, rejected)
    unused = bool(rejected)  # a stored choice, passed over with its reason
    yield from _ruled(op, workload, table, pins, rejected, Missed.STALE if unused else None)
    for kernel in _by_priority(op, workload, table):
        answer, config = _fit(table, kernel, workload, pins)
        answer = answer and _builds(workload, kernel, config)
        if not answer:
            rejected.append(Rejected(kernel.name, answer.reason))
            continue
        last = kernel.name == op.fallback
        reason = (
            "the op's fallback: no other kernel can" if last else f"not tuned; highest priority ({kernel.priority_for(workload)}) that can"
        )
        yield Selection(op.name, workload, kernel, config, reason, tuple(rejected), _missed(unused, last))
    raise _nothing(op, workload, rejected, pins)


def _missed(unused: bool, last: bool) -> Missed | None:
    if not choices.connected():
        return None
    return Missed.STALE if unused else Missed.FALLBACK if last else Missed.UNTUNED


def _chosen(op: Op, workload: Workload, table: Registry, pins: Pins, rejected: list[Rejected]) -> Iterator[Selection]:
    """The stored choice, where there is one that still holds, can run here and was not seen to fail in its build."""
    chosen = choices.find(workload)
    if chosen is None:
        return
    answer = _serves(chosen, op, workload, table, pins)
    if answer:
        kernel = table.kernel(op.name, chosen.kernel)
        answer = _builds(workload, kernel, chosen.config)
        if answer:
            reason = f"stored choice{f' of run {chosen.run_id}' if chosen.run_id else ''}{f': {chosen.reason}' if chosen.reason else ''}"
            yield Selection(op.name, workload, kernel, chosen.config, reason, tuple(rejected))
            return
    rejected.append(Rejected(chosen.kernel, f"stored choice, {answer.reason}"))


def _ruled(
    op: Op, workload: Workload, table: Registry, pins: Pins, rejected: list[Rejected], missed: Missed | None
) -> Iterator[Selection]:
    """The pairs of a bucket's rule that holds and covers this workload, nearest first; one that can't run here is passed over."""
    rule = rules.find(workload)
    if rule is None:
        return
    answer = rules.holds(rule, op, table) and rule.covers(workload)
    if not answer:
        rejected.append(Rejected(rule.name, answer.reason))
        return
    for step in rule.steps(workload):
        kernel, config = table.kernel(op.name, step.pair.kernel), step.pair.config
        answer, _ = _fit(table, kernel, workload, pins, config, tried_here=False)
        answer = answer and _builds(workload, kernel, config)
        if answer:
            yield Selection(op.name, workload, kernel, config, step.reason, tuple(rejected), missed, by_rule=True)
        else:
            rejected.append(Rejected(kernel.name, f"{rule.name}, {answer.reason}"))


def _pinned(op: Op, workload: Workload, table: Registry, pins: Pins, name: str) -> Selection:
    kernel = table.kernel(op.name, name)
    answer, config, stored = _as_pinned(op, workload, table, pins, kernel)
    if not answer:
        asked = f"{op.name} is pinned to {name}, which can't run {workload.label()}: {answer.reason}."
        raise Unsupported(asked, do="Unpin it or change the call.")
    return Selection(op.name, workload, kernel, config, "pinned by the caller" + (", with its stored config" if stored else ""))


def as_pinned(op: Op, kernel: Kernel, workload: Workload) -> tuple[Answer, Config]:
    """Whether a kernel could serve a workload if it were pinned, and the config it would have."""
    return _as_pinned(op, workload, registry.current(), active(), kernel)[:2]


def _as_pinned(op: Op, workload: Workload, table: Registry, pins: Pins, kernel: Kernel) -> tuple[Answer, Config, bool]:
    """The stored config where the choice is this kernel and holds, else its author's; and whether it was the stored one."""
    chosen = choices.find(workload)
    if chosen is not None and chosen.kernel == kernel.name and _serves(chosen, op, workload, table, pins):
        return YES, chosen.config, True
    return *_fit(table, kernel, workload, pins), False


def _by_priority(op: Op, workload: Workload, table: Registry) -> list[Kernel]:
    """Kernels of priority >= 0 for this workload, each followed by its fallbacks, the op's fallback last; each once."""
    kernels = table.by_op.get(op.name, {})
    ranked = sorted(((k.priority_for(workload), k) for k in table.kernels(op.name)), key=lambda pair: -pair[0])
    names = [name for priority, k in ranked if priority >= 0 for name in (k.name, *k.fallbacks) if name != op.fallback]
    return [kernels[name] for name in dict.fromkeys([*names, op.fallback]) if name in kernels]


def _serves(chosen: Choice, op: Op, workload: Workload, table: Registry, pins: Pins) -> Answer:
    """Whether a stored choice can run here with its config, and still holds."""
    kernel = table.by_op.get(op.name, {}).get(chosen.kernel)
    answer = YES if kernel is None else _fit(table, kernel, workload, pins, chosen.config)[0]
    return answer and choices.holds(chosen, op, table)


def _fit(
    table: Registry, kernel: Kernel, workload: Workload, pins: Pins, config: Config | None = None, *, tried_here: bool = True
) -> tuple[Answer, Config]:
    """Whether a kernel can serve, and with which config: the given one, else its author's. `tried_here`: a given one had its trial
    on this very workload.

    Predicates, constraints and probes are the plugin's code; one that raises is a no, and takes no other kernel down.
    """
    try:
        answer = table.can_run(kernel, workload.device) and kernel.support.fits(workload)
        if answer and pins.deterministic:
            answer = _deterministic(table, kernel, workload, tuned=config is not None and tried_here)
        if not answer:
            return answer, kernel.space.default_for(workload) if answer.timed else {}
        config = kernel.space.default_for(workload) if config is None else config
        return kernel.space.allows(config, workload), config
    except Exception as error:
        return no(f"its declaration raised {type(error).__name__}: {error}"), {}


def _deterministic(table: Registry, kernel: Kernel, workload: Workload, *, tuned: bool) -> Answer:
    """Whether equal inputs give equal bits: shown by a check of the op's frozen matrix, or, for a stored choice, by its own trial,
    which ran its config twice on this very workload."""
    if tuned and kernel.determinism is not Determinism.NONE:
        return YES
    return proofs.shown(table.op(kernel.op), kernel, workload.device, table)


def _builds(workload: Workload, kernel: Kernel, config: Config) -> Answer:
    """Whether its build was not seen to fail in this process."""
    failure = _failed.get(_build_key(workload, kernel, config))
    return no(f"does not build: {failure}") if failure else YES


def _build_key(workload: Workload, kernel: Kernel, config: Config) -> tuple[str, str, str]:
    return workload.key(), kernel.name, config_key(config)


def _nothing(op: Op, workload: Workload, rejected: list[Rejected], pins: Pins) -> Unsupported:
    reasons = "; ".join(f"{r.kernel}: {r.reason}" for r in rejected) or "it has no kernels"
    run = proofs.command(op, None, workload.device)
    do = f"Run `{run}`: what passes there with equal bits from run to run serves from then on." if pins.deterministic else ""
    return Unsupported(f"no kernel of {op.name} can run {workload.key()}.", exists=f"{reasons}.", do=do)
