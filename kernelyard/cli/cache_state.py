"""Whether a stored choice may be used here and now, and what of its key has changed where not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kernelyard.registry.choices import Change
    from kernelyard.store.records import Entry
    from kernelyard.store.rules import RuleEntry

ELSEWHERE = "of another device or driver"


def here() -> set[str]:
    """The keys of the devices that calls can run on here."""
    from kernelyard.registry.machine import cuda_ready, identity

    return {identity(device).key() for device in (("cpu", "cuda") if cuda_ready() else ("cpu",))}


def changes(entry: Entry) -> list[Change]:
    """Each part of an entry's key that is not so here and now; none where it may be used."""
    from kernelyard.registry import choices, registry
    from kernelyard.registry.choices import Change, device_changes
    from kernelyard.registry.machine import cuda_ready, identity

    everything = registry.current()
    if entry.choice is None:
        return [Change("entry", "", "", f"it can't be read: {entry.problem}")]
    kind = entry.device_key.partition("/")[0]
    local = identity(kind) if kind == "cpu" or (kind == "cuda" and cuda_ready()) else None
    found = device_changes(entry.device_key, local)
    if entry.op not in everything.ops:
        return [*found, Change("op", entry.op, "", f"op {entry.op} is not installed any more")]
    return found + choices.changes(entry.choice, everything.op(entry.op), everything)


def stale(entry: Entry) -> str:
    """Why a choice may not be used, in short; empty where it may."""
    if entry.choice is None:
        return f"unreadable: {entry.problem}"
    found = changes(entry)
    if not found:
        return ""
    return ELSEWHERE if entry.device_key not in here() and found[0].part != "op" else f"stale: {found[0]}"


def rule_stale(entry: RuleEntry) -> str:
    """Why a bucket's rule may not be used, in short; empty where it may."""
    from kernelyard.registry import registry, rules

    everything = registry.current()
    if entry.rule is None:
        return f"unreadable: {entry.problem}"
    if entry.op not in everything.ops:
        return f"stale: op {entry.op} is not installed any more"
    if entry.device_key not in here():
        return ELSEWHERE
    return rules.holds(entry.rule, everything.op(entry.op), everything).reason


def origin(entry: Entry) -> str:
    """The file an imported choice came from, in a sentence; empty for one that was tuned in this store."""
    told: dict[str, Any] | None = entry.evidence.get("imported")
    return f"imported from {told.get('file')} (sha256 {str(told.get('sha256'))[:12]}) on {told.get('at')}" if isinstance(told, dict) else ""
