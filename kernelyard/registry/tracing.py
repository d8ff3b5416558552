"""What a backend may tell of a kernel's memory accesses and of its compiled code, on a machine that can't run it.

Both are optional: a builder that has `trace` is a `Tracer`, one that has `compile_for` is a `Compiler`; `isinstance` asks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from kernelyard.registry.kernel import Kernel
    from kernelyard.registry.op import Op
    from kernelyard.registry.spec import Config, Workload

Kind = Literal["load", "store", "atomic"]
Role = Literal["input", "output", "workspace"]
Program = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Region:
    """Where a tensor lies while it is traced: `nbytes` from its first to past its last element, gaps of strides included.

    `role` is 'workspace' for a tensor that the kernel's own launch code made. `strides` count elements.
    """

    name: str
    role: Role
    address: int
    nbytes: int
    itemsize: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def holds(self, addresses: NDArray[np.int64], itemsize: int) -> NDArray[np.bool_]:
        """Which accesses of `itemsize` bytes lie wholly inside."""
        return (addresses >= self.address) & (addresses + itemsize <= self.address + self.nbytes)


@dataclass(frozen=True, slots=True, eq=False)
class Access:
    """One load, store or atomic of one program: a block of elements.

    addresses   byte addresses, int64, in the block's shape; of lanes that the mask turns off too
    mask        which lanes are active, in the same shape
    changed     of a store: where the value differed from what was there, in the same shape
    tensor      name of the region that the pointer was derived from
    sequence    counts accesses from 0, in the order in which they ran
    launch      of a kernel of several launches, which one, from 0: each sees what those before it stored
    """

    sequence: int
    program: Program
    kind: Kind
    line: int
    tensor: str
    addresses: NDArray[np.int64]
    mask: NDArray[np.bool_]
    itemsize: int
    changed: NDArray[np.bool_] | None = field(default=None, repr=False)
    launch: int = 0


See = Callable[[Access], None]


@dataclass(frozen=True, slots=True)
class Trace:
    """A launch that is ready to be traced: `run(see)` interprets every program and hands each access over as it happens.

    Nothing is kept: a grid of any size needs no more memory than what `see` keeps. `run` may be called once.
    Of several launches, function, file, grid and `num_warps` are the first's; `later_warps` those of the rest.
    """

    function: str
    file: str
    grid: Program
    num_warps: int
    regions: tuple[Region, ...]
    run: Callable[[See], None] = field(repr=False)
    later_warps: tuple[int, ...] = ()

    def warps(self, launch: int) -> int:
        """Warps a program of one of the launches."""
        return (self.num_warps, *self.later_warps)[launch]


@runtime_checkable
class Tracer(Protocol):
    """A builder that can interpret a kernel and tell its memory accesses."""

    def trace(self, op: Op, kernel: Kernel, workload: Workload, config: Config, args: tuple[Any, ...]) -> Trace:
        """Copy `args` (in schema order, on the CPU) apart from each other and prepare the launch; raises BuildFailed.

        Lanes outside the tensor that their pointer was derived from are handed over, and not executed: such a load gives 0.
        """


@runtime_checkable
class Compiler(Protocol):
    """A builder that can compile for a GPU which is not here."""

    def compile_for(self, op: Op, kernel: Kernel, workload: Workload, config: Config, target: str) -> Mapping[str, int]:
        """Registers and local (spilled) bytes a thread, shared bytes a block, widest global load and store in bytes.

        Keys: registers, local_bytes, shared_bytes, load_bytes, store_bytes. `target` is such as 'sm_90'. Raises BuildFailed.
        """
