"""The defences by name, each with what it catches. All are on; a test that switches one off shows what then gets through."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

DEFENCES: Mapping[str, str] = MappingProxyType(
    {
        "values": "results outside the tolerance of the reference",
        "eager": "errors far above those of plain torch, though each element is within the tolerance",
        "nonfinite": "NaN and inf in other places than in the reference",
        "edges": "faults that typical values do not show",
        "poison": "elements never written, and results that use what the output held before",
        "guards": "stores outside the output",
        "workspace": "stores outside of what the kernel allocates itself, and reliance on what fresh memory holds",
        "surround": "loads past the end of an input",
        "inputs": "inputs that are changed",
        "form": "outputs of the wrong number, type, shape, dtype, device or strides",
        "alias": "outputs that share memory with an input, another output or an earlier result",
        "repeat": "two runs that differ, though the kernel is declared deterministic",
        "same_pointers": "results kept from an earlier call with the same addresses",
        "fresh": "addresses kept from an earlier call",
        "in_place": "arguments read after a result has overwritten them, where it may",
        "late": "outputs that change after the call returned",
        "stream": "work that does not wait its turn on the caller's CUDA stream",
        "state": "global state left changed",
        "clock": "timers and synchronisations replaced",
        "memory": "memory that is not given back",
    }
)
ALL = frozenset(DEFENCES)
