"""Stored choices as dispatch sees them: a function that finds one, and a judgement whether it still holds.

The registry knows no store. `connect` names the function that looks one up; `kernelyard` connects its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from kernelyard.registry.answer import YES, Answer, no
from kernelyard.registry.lazy import load

if TYPE_CHECKING:  # `import kernelyard` imports this module, and must cost nothing
    from kernelyard.registry.op import Op
    from kernelyard.registry.registry import Registry
    from kernelyard.registry.spec import Choice, Workload

Source = Callable[[str, str, str, str], "Choice | None"]
"""(op, workload key, device key, mode) -> Choice or None; never raises for an entry it can't read."""

_source: Source | str | None = None


def connect(source: Source | str | None) -> None:
    """Where choices come from: a function, or 'module:function' imported at the first lookup, or nowhere."""
    global _source
    _source = source


def connected() -> bool:
    """Whether there is anywhere to look: where not, nothing can be tuned, and nothing is missed."""
    return _source is not None


@contextmanager
def none() -> Iterator[None]:
    """No stored choice is found meanwhile: what is held out is met as by someone who never tuned."""
    global _source
    before, _source = _source, None
    try:
        yield
    finally:
        _source = before


def find(workload: Workload, mode: str = "device") -> Choice | None:
    """The choice stored for this workload on this kind of device, valid or not."""
    global _source
    if _source is None:
        return None
    from kernelyard.registry.machine import identity

    source: Source = load(_source) if isinstance(_source, str) else _source
    _source = source
    return source(workload.op, workload.key(), identity(workload.device).key(), mode)


def holds(choice: Choice, op: Op, registry: Registry) -> Answer:
    """Whether a stored choice may be used now; else what has changed since."""
    table = registry.by_op.get(op.name, {})
    if choice.kernel not in table:
        return no(f"stale: kernel {choice.kernel} is not installed any more")
    kernel = table[choice.kernel]
    try:
        current = {
            "the contract of the op": (choice.contract_hash, op.contract_hash()),
            "the kernel's source": (choice.source_hash, kernel.source_hash()),
            "the kernel's config space": (choice.space_hash, kernel.space.hash()),
        }
        versions = registry.builder(kernel.backend).versions()
    except Exception as error:  # a source file that is gone, a backend that does not import: the choice is a miss
        return no(f"stale: what it was tuned with can't be read now: {type(error).__name__}: {error}")
    for what, (then, now) in current.items():
        if then != now:
            return no(f"stale: {what} has changed since it was tuned")
    answer = versions_hold(choice.versions, versions)
    return answer or no(f"stale: {answer.reason}")


def versions_hold(before: Mapping[str, str], after: Mapping[str, str]) -> Answer:
    """Whether all versions are what they were; else the first that is not."""
    for name in sorted({*after, *before}):
        then, now = before.get(name, "none"), after.get(name, "none")
        if then != now:
            return no(f"{name} was {then}, is {now}")
    return YES
