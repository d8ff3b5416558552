"""Launching a kernel so that what it leaves out, or stores where it should not, shows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from kernelyard.errors import BuildFailed, Unsupported
from kernelyard.registry.backend import Executable
from kernelyard.registry.op import Op
from kernelyard.registry.spec import Status
from kernelyard.verify import guards
from kernelyard.verify.guards import Guarded
from kernelyard.verify.inputs import Inputs
from kernelyard.verify.outcome import Fault


@dataclass(frozen=True)
class Launched:
    """`outputs` as the kernel gave them, `held` what they held when it was done, `regions` their guarded places, if any."""

    outputs: tuple[Tensor, ...]
    held: tuple[Tensor, ...]
    regions: tuple[Guarded, ...]


Outputs = tuple[tuple[Tensor, ...], tuple[Guarded, ...]]
Enqueue = Callable[[Inputs], Outputs]


@dataclass(frozen=True)
class Launcher:
    """One executable on one device. `poison` off leaves zeros in the outputs, as a fresh page of memory does."""

    op: Op
    executable: Executable
    device: torch.device
    poison: bool = True

    def launch(self, inputs: Inputs, enqueue: Enqueue | None = None) -> Launched:
        """Runs to the end; whatever the kernel raises is its fault. By default `into`."""
        try:
            outputs, regions = (enqueue or self.into)(inputs)
            self.synchronise()
        except (Unsupported, BuildFailed, Fault):
            raise
        except Exception as error:
            raise Fault(f"raised {type(error).__name__}: {str(error)[:800]}", Status.CRASHED) from error
        held = tuple(o.detach().clone() if isinstance(o, Tensor) else o for o in outputs)
        return Launched(outputs, held, regions)

    def into(self, inputs: Inputs, byte: int = guards.POISON_BYTE) -> Outputs:
        """Into guarded, poisoned outputs where the kernel can write into given ones; else as `call`."""
        if self.executable.into is None:
            return self.call(inputs)
        regions = tuple(guards.output(empty) for empty in self.op.empty(*inputs.args))
        for region in regions:
            guards.poison(region, byte if self.poison else 0)
        outputs = tuple(region.tensor for region in regions)
        self.executable.into(outputs, *inputs.args)
        return outputs, regions

    def call(self, inputs: Inputs) -> Outputs:
        """As people call it. Poisoned memory of the right size was just freed: the allocator hands it out next."""
        if self.poison:
            empties = [empty for empty in self.op.empty(*inputs.args) * 2 if empty.numel()]
            junk = [torch.empty_like(empty).view(torch.uint8).fill_(guards.POISON_BYTE) for empty in empties]
            del junk, empties
        outputs = self.executable.call(*inputs.args)
        return (tuple(outputs) if isinstance(outputs, (tuple, list)) else (outputs,)), ()

    def synchronise(self) -> None:
        """Waits for the device."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
