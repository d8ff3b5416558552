"""Launching a kernel so that what it leaves out, or stores where it should not, shows."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
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
from kernelyard.verify.machine import raised
from kernelyard.verify.outcome import CheckerFailed, Fault, checking
from kernelyard.verify.workspace import Workspaces


@dataclass(frozen=True)
class Launched:
    """`outputs` as the kernel gave them, `regions` their guarded places, if any.

    `held` is what they held when it was done, and behind that what the arguments held that the op writes into.
    `workspaces` are the places of what the kernel allocated itself.
    """

    outputs: tuple[Tensor, ...]
    held: tuple[Tensor, ...]
    regions: tuple[Guarded, ...]
    workspaces: tuple[Guarded, ...] = ()


Outputs = tuple[tuple[Tensor, ...], tuple[Guarded, ...], tuple[Guarded, ...]]
"""Outputs, their guarded places where the checker made them, and those of what the kernel allocated."""
Enqueue = Callable[[Inputs], Outputs]


@dataclass(frozen=True)
class Launcher:
    """One executable on one device. `poison` off leaves zeros in the outputs, as a fresh page of memory does.

    `workspace` off leaves alone what the kernel allocates. `settled` waits for the device right before the kernel.
    """

    op: Op
    executable: Executable
    device: torch.device
    poison: bool = True
    workspace: bool = True
    settled: bool = False

    def launch(self, inputs: Inputs, enqueue: Enqueue | None = None) -> Launched:
        """Runs to the end; whatever the kernel raises is its fault. By default `into`. What it is to write into is as given before."""
        with checking("putting back what is written into"):
            inputs.restore()
        try:
            outputs, regions, workspaces = (enqueue or self.into)(inputs)
            self.synchronise()
        except (Unsupported, BuildFailed, Fault, CheckerFailed):
            raise
        except Exception as error:
            raise Fault(raised(error), Status.CRASHED) from error
        with checking("keeping the outputs"):
            held = tuple(o.detach().clone() if isinstance(o, Tensor) else o for o in (*outputs, *inputs.written))
        return Launched(outputs, held, regions, workspaces)

    def into(self, inputs: Inputs, byte: int = guards.POISON_BYTE, workspace_byte: int = guards.POISON_BYTE) -> Outputs:
        """Into guarded, poisoned outputs where the kernel can write into given ones; else as `call`."""
        if self.executable.into is None:
            return self.call(inputs, workspace_byte)
        regions = self._guarded_outputs(inputs, byte if self.poison else 0)
        outputs = tuple(region.tensor for region in regions)
        self._settle()
        with self._watched(workspace_byte) as made:
            self.executable.into(outputs, *inputs.args)
        return outputs, regions, tuple(made)

    def call(self, inputs: Inputs, workspace_byte: int = guards.POISON_BYTE) -> Outputs:
        """As people call it. Poisoned memory of the right size was just freed: the allocator hands it out next."""
        if self.poison:
            self._leave_poison(inputs)
        self._settle()
        with self._watched(workspace_byte) as made:
            outputs = self.executable.call(*inputs.args)
        return tuple(outputs) if isinstance(outputs, (tuple, list)) else (outputs,), (), tuple(made)

    @contextlib.contextmanager
    def _watched(self, byte: int) -> Iterator[list[Guarded]]:
        """Around the kernel alone: what it allocates is guarded, and listed."""
        if not self.workspace:
            yield []
            return
        with Workspaces(byte) as mode:
            yield mode.regions

    def _guarded_outputs(self, inputs: Inputs, byte: int) -> tuple[Guarded, ...]:
        with checking("guarding the outputs"):
            regions = tuple(guards.output(empty) for empty in self.op.empty(*inputs.args))
            for region in regions:
                guards.poison(region, byte)
        return regions

    def _leave_poison(self, inputs: Inputs) -> None:
        with checking("poisoning freed memory"):
            empties = [empty for empty in self.op.empty(*inputs.args) * 2 if empty.numel()]
            junk = [torch.empty_like(empty).view(torch.uint8).fill_(guards.POISON_BYTE) for empty in empties]
            del junk, empties

    def _settle(self) -> None:
        if self.settled:
            self.synchronise()

    def synchronise(self) -> None:
        """Waits for the device."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
