"""The inputs of one case as the kernel gets them, in guarded memory, with what the op makes of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kernelyard.registry.op import Op
from kernelyard.registry.spec import Workload
from kernelyard.verify import compare, diagnosis, edges, form, guards
from kernelyard.verify.guards import Guarded
from kernelyard.verify.outcome import checking


@dataclass(frozen=True)
class Inputs:
    """`args` go to the kernel; `wide` are the same values in the reference's precision, `want` what it makes of them.

    `want` are the outputs, then the arguments that the op writes into as they are to be afterwards; `touched` tells by the name of such an
    argument which elements are to be written, or are NaN, whose bits are nobody's. `wide` is kept for results that are small enough to
    guess at: else it is empty.
    """

    args: tuple[Any, ...]
    regions: dict[str, Guarded]
    before: dict[str, Tensor]
    wide: tuple[Any, ...]
    want: tuple[Tensor, ...]
    touched: dict[str, Tensor]

    @property
    def written(self) -> tuple[Tensor, ...]:
        """The arguments that the op writes into, in the order of its schema."""
        return tuple(self.regions[name].tensor for name in self.touched)

    def restore(self) -> None:
        """Puts back what an earlier run wrote, and all that lies beside."""
        for name in self.touched:
            self.regions[name].buffer.copy_(self.before[name])

    def changed(self) -> str:
        """Which inputs, or memory around them, no longer hold the same bits, where the op is to write aside; empty when all do."""
        return "; ".join(filter(None, (self._change(name) for name in self.regions)))

    def _change(self, name: str) -> str:
        region, before = self.regions[name], self.before[name]
        now = self._without_writes(name) if name in self.touched else region.buffer
        if form.same_bits(now, before):
            return ""
        own = slice(region.start, region.end)
        if (at := compare.first_difference(now[own], before[own])) >= 0:
            return f"input {name} was changed, first at its element {at // region.tensor.element_size()}"
        return f"a store outside of the output: it hit memory beside input {name}"

    def _without_writes(self, name: str) -> Tensor:
        """The region's bytes with what is to be written as it was before."""
        region, touched = self.regions[name], self.touched[name]
        now = region.buffer.clone()
        guards.within(region, now)[touched] = guards.within(region, self.before[name])[touched]
        return now


def make(op: Op, workload: Workload, device: torch.device, seed: int, edge: str, surround: bool = True) -> Inputs:
    """Inputs of a workload at addresses of their own. Equal seeds give equal values."""
    args = values(op, workload, device, seed, edge)
    with checking("guarding the inputs"):
        regions = {
            argument.name: guards.surround(value, surround)
            for argument, value in zip(op.arguments, args, strict=True)
            if isinstance(value, Tensor)
        }
    return _from(op, workload, args, regions)


def rewrite(op: Op, workload: Workload, old: Inputs, device: torch.device, seed: int, edge: str) -> Inputs:
    """Other values at the addresses of `old`, which is void from then on."""
    args = values(op, workload, device, seed, edge)
    for argument, value in zip(op.arguments, args, strict=True):
        if isinstance(value, Tensor):
            guards.write(old.regions[argument.name], value)
    return _from(op, workload, args, old.regions)


def values(op: Op, workload: Workload, device: torch.device, seed: int, edge: str) -> tuple[Any, ...]:
    """The op's own inputs, with the edge values in the tensors that it names."""
    with checking(f"the input maker of {op.name}"):
        generator = torch.Generator(device).manual_seed(seed)
        args = op.inputs(workload, generator)
        for argument, value in zip(op.arguments, args, strict=True):
            if argument.name in op.filled and isinstance(value, Tensor):
                edges.fill(edge, value, generator)
    return args


def _from(op: Op, workload: Workload, args: tuple[Any, ...], regions: dict[str, Guarded]) -> Inputs:
    own = tuple(regions[a.name].tensor if a.name in regions else v for a, v in zip(op.arguments, args, strict=True))
    with checking(f"the reference of {op.name}"):
        wide_dtype = torch.float64 if workload.dtype in ("float32", "float64") else torch.float32
        wide = tuple(a.to(wide_dtype, copy=True) if isinstance(a, Tensor) and a.is_floating_point() else a for a in own)
        with torch.no_grad():
            want = op.results(wide)
        touched = {name: after != wide[i] for (i, name), after in zip(_mutated(op), want[op.returns :], strict=True)}
        want = tuple(w.contiguous() if w.is_floating_point() else w.double().contiguous() for w in want)
        kept = wide if all(w.numel() <= diagnosis.MOST_ELEMENTS for w in want) else ()
        before = {name: region.buffer.clone() for name, region in regions.items()}
    return Inputs(own, regions, before, kept, want, touched)


def _mutated(op: Op) -> list[tuple[int, str]]:
    return [(i, argument.name) for i, argument in enumerate(op.arguments) if argument.mutated]
