"""Stored choices as dispatch sees them: a function that finds one, and a judgement whether it still holds.

The registry knows no store. `connect` names the function that looks one up; `kernelyard` connects its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kernelyard.registry.answer import YES, Answer, no
from kernelyard.registry.source import Source

if TYPE_CHECKING:  # `import kernelyard` imports this module, and must cost nothing
    from kernelyard.registry.op import Op
    from kernelyard.registry.registry import Registry
    from kernelyard.registry.spec import Choice, DeviceIdentity, Workload

Find = Callable[[str, str, str, str], "Choice | None"]
"""(op, workload key, device key, mode) -> Choice or None; never raises for an entry it can't read."""

_source: Source[Find] = Source()


@dataclass(frozen=True, slots=True)
class Change:
    """One part of what a choice is valid for that is not as it was: `kernel`, `contract`, `source`, `space` or `environment: <name>`.

    `then` and `now` are hashes or versions; `text` says it to people.
    """

    part: str
    then: str
    now: str
    text: str

    def __str__(self) -> str:
        return self.text


def connect(source: Find | str | None) -> None:
    """Where choices come from: a function, or 'module:function' imported at the first lookup, or nowhere."""
    _source.connect(source)


def connected() -> bool:
    """Whether there is anywhere to look: where not, nothing can be tuned, and nothing is missed."""
    return _source.connected


def none() -> AbstractContextManager[None]:
    """No stored choice is found meanwhile: what is held out is met as by someone who never tuned."""
    return _source.none()


def find(workload: Workload, mode: str = "device") -> Choice | None:
    """The choice stored for this workload on this kind of device, valid or not."""
    source = _source.function()
    if source is None:
        return None
    from kernelyard.registry.machine import identity

    return source(workload.op, workload.key(), identity(workload.device).key(), mode)


def holds(choice: Choice, op: Op, registry: Registry) -> Answer:
    """Whether a stored choice may be used now; else the first thing that has changed since."""
    first = next(iter(changes(choice, op, registry)), None)
    return YES if first is None else no(f"stale: {first}")


def changes(choice: Choice, op: Op, registry: Registry) -> list[Change]:
    """Every part of a choice's key that is not what it was when it was tuned; none where it may be used. Its device is not looked at."""
    table = registry.by_op.get(op.name, {})
    if choice.kernel not in table:
        return [Change("kernel", choice.kernel, "", f"kernel {choice.kernel} is not installed any more")]
    kernel = table[choice.kernel]
    try:
        current = {
            "contract": (choice.contract_hash, op.contract_hash(), "the contract of the op"),
            "source": (choice.source_hash, kernel.source_hash(), "the kernel's source"),
            "space": (choice.space_hash, kernel.space.hash(), "the kernel's config space"),
        }
        versions = registry.builder(kernel.backend).versions()
    except Exception as error:  # a source file that is gone, a backend that does not import: the choice is a miss
        return [Change("kernel", choice.kernel, "", f"what it was tuned with can't be read now: {type(error).__name__}: {error}")]
    found = [
        Change(part, then, now, f"{what} has changed since it was tuned") for part, (then, now, what) in current.items() if then != now
    ]
    return found + _environment(choice.versions, versions)


def versions_hold(before: Mapping[str, str], after: Mapping[str, str]) -> Answer:
    """Whether all versions are what they were; else the first that is not."""
    first = next(iter(_environment(before, after)), None)
    return YES if first is None else no(str(first))


def _environment(before: Mapping[str, str], after: Mapping[str, str]) -> list[Change]:
    both = ((name, before.get(name, "none"), after.get(name, "none")) for name in sorted({*after, *before}))
    return [Change(f"environment: {name}", then, now, f"{name} was {then}, is {now}") for name, then, now in both if then != now]


def device_changes(device_key: str, here: DeviceIdentity | None) -> list[Change]:
    """What of a device key is not so here; `here` is this machine's device of that type, None where it has none."""
    kind, _, rest = device_key.partition("/")
    if here is None:
        return [Change("device", device_key, "", f"it was tuned on {device_key}; there is no {kind} device here")]
    name, capability, driver = ([*rest.rsplit("/", 2), "", ""])[:3]
    parts = {"device": (name, here.name), "capability": (capability, here.capability), "driver": (driver, here.driver)}
    return [
        Change("device" if part == "device" else f"device: {part}", then, now, f"the {part} was {then}, is {now}")
        for part, (then, now) in parts.items()
        if then != now
    ]
