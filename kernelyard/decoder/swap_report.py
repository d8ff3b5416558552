"""What a swap did: the layers it changed, those it left alone, and where the model's own code served all the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import nn

from kernelyard.registry.aligned import aligned


class Fallbacks:
    """How often the model's own code served in place of an op. Calls inside compiled code are not seen."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str]] = Counter()

    def note(self, op: str, reason: str) -> None:
        """Count one call."""
        if not torch.compiler.is_compiling():
            self._counts[op, reason] += 1

    def counts(self) -> Mapping[tuple[str, str], int]:
        """Calls by op and reason, the most frequent first."""
        return MappingProxyType(dict(self._counts.most_common()))


@dataclass(frozen=True, slots=True)
class Layer:
    """A swapped layer: its name in the model, its class, and the ops that serve in it."""

    name: str
    kind: str
    ops: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Left:
    """A layer that an op was asked for in and was not put into."""

    name: str
    kind: str
    op: str
    reason: str


@dataclass(frozen=True, eq=False)
class Swap:
    """A swap in force until `restore`, or until its `with` block ends. `str` gives the table."""

    model: nn.Module
    swapped: tuple[Layer, ...]
    left: tuple[Left, ...]
    _fallbacks: Fallbacks
    _restore: Callable[[], None]

    @property
    def fallbacks(self) -> Mapping[tuple[str, str], int]:
        """Calls that the model's own code served, by op and reason, so far."""
        return self._fallbacks.counts()

    def restore(self) -> None:
        """Undo this swap; once it is undone nothing happens. Raises UsageError where a layer's forward was replaced since."""
        self._restore()

    def __enter__(self) -> Swap:
        return self

    def __exit__(self, *raised: object) -> None:
        self.restore()

    def __repr__(self) -> str:
        ops = Counter(op for layer in self.swapped for op in layer.ops)
        told = ", ".join(f"{op} in {count}" for op, count in ops.items()) or "nothing"
        return f"<Swap of {type(self.model).__name__}: {told}; {len(self.left)} left alone>"

    def __str__(self) -> str:
        rows = [("op", "layers", "what", "because")]
        swapped = Counter((op, layer.kind) for layer in self.swapped for op in layer.ops)
        rows += [(op, f"{count} {kind}", "swapped", "") for (op, kind), count in swapped.items()]
        left = Counter((one.op, one.kind, one.reason) for one in self.left)
        rows += [(op, f"{count} {kind}", "left alone", reason) for (op, kind, reason), count in left.items()]
        rows += [(op, f"{count} calls", "by the model", reason) for (op, reason), count in self.fallbacks.items()]
        return aligned(rows)
