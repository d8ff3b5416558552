"""The operators people call, one for each registered op: `kernelyard.ops.rmsnorm(x, w, eps=1e-6)`.

An attribute is made when it is first asked for, from the contract of that name; `dir(kernelyard.ops)` lists them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernelyard.registry import registry

if TYPE_CHECKING:
    from kernelyard.registry.dispatch import Operator


def __getattr__(name: str) -> Operator:
    if name.startswith("_"):
        raise AttributeError(name)
    table = registry.current()
    if name not in table.ops:
        raise AttributeError(f"kernelyard.ops has no '{name}'. There are: {', '.join(sorted(table.ops))}.")
    from kernelyard.registry.dispatch import Operator

    operator = Operator(table.ops[name])
    globals()[name] = operator
    return operator


def __dir__() -> list[str]:
    return sorted(registry.current().ops)
