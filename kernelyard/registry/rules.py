"""Stored rules as dispatch sees them: a function that finds one, and a judgement whether it still holds. As `choices`, for shapes unseen.

Looked up once for each new signature, after the stored choice of the very workload; a call that was bound pays nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from kernelyard.registry import choices
from kernelyard.registry.answer import YES, Answer
from kernelyard.registry.source import Source

if TYPE_CHECKING:  # `import kernelyard` imports this module, and must cost nothing
    from kernelyard.registry.op import Op
    from kernelyard.registry.registry import Registry
    from kernelyard.registry.rule import Rule
    from kernelyard.registry.spec import Workload

Find = Callable[[str, str, str], "Rule | None"]
"""(op, device key, mode) -> Rule or None; never raises for one it can't read."""

_source: Source[Find] = Source()


def connect(source: Find | str | None) -> None:
    """Where rules come from: a function, or 'module:function' imported at the first lookup, or nowhere."""
    _source.connect(source)


def none() -> AbstractContextManager[None]:
    """No rule is found meanwhile: what serves then is what serves without one."""
    return _source.none()


def find(workload: Workload, mode: str = "device") -> Rule | None:
    """The rule stored for this op on this kind of device, valid or not."""
    source = _source.function()
    if source is None:
        return None
    from kernelyard.registry.machine import identity

    return source(workload.op, identity(workload.device).key(), mode)


def holds(rule: Rule, op: Op, registry: Registry) -> Answer:
    """Whether a rule may be used now; else what has changed. One stale pair takes the rule: the others were best beside it as it was."""
    answers = (choices.holds(pair, op, registry) for pair in rule.pairs)
    return next((answer for answer in answers if not answer), YES)
