"""The operators people call, one for each registered op: `kernelyard.ops.rmsnorm(x, w, eps=1e-6)`.

An attribute is made when it is first asked for, from the contract of that name; `dir(kernelyard.ops)` lists them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernelyard.registry import registry as _registry

if TYPE_CHECKING:
    from kernelyard.registry.operator import Operator

_made: list[str] = []


def __getattr__(name: str) -> Operator:
    if name.startswith("_"):
        raise AttributeError(name)
    ops = _registry.current().ops
    if name not in ops:
        raise AttributeError(f"kernelyard.ops has no '{name}'. There are: {', '.join(sorted(ops))}.")
    from kernelyard.registry.operator import operator

    found = globals()[name] = operator(name)
    _made.append(name)
    return found


def __dir__() -> list[str]:
    return sorted(_registry.current().ops)


def _forget() -> None:
    """Plugins have changed, and with them perhaps what a name means."""
    while _made:
        globals().pop(_made.pop(), None)


_registry.on_reset.append(_forget)
