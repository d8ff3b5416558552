"""The oracle: one built kernel on one workload, run up to seven times, each run with something that a wrong kernel trips over.

1. into guarded, poisoned outputs (or allocated by the kernel): values, places of NaN and inf, stores and loads astray
2. again: the same bits, where the kernel is declared deterministic
3. as people call it, with outputs that the kernel allocates: their form, and whose memory they are
4. other data at the same addresses          5. the first data at fresh addresses
6. the first data at the first addresses, on a side stream that is busy (CUDA)
7. over its own arguments, where the contract lets it
Then: do earlier outputs still hold what they held, are the inputs, the global state and the clocks as they were?

Results of more than 262144 elements get runs 1 and 2 alone: what the others catch does not depend on size, and each
costs up to a second there.

Typical values are computed by plain torch too, once, before the first run: see `precision`. What the checker's own code
raises is a `CheckerFailed`, which is no verdict; a case that memory has no room for is unsupported, see `room`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from kernelyard.errors import BuildFailed, Unsupported
from kernelyard.registry.backend import Executable
from kernelyard.registry.kernel import Kernel
from kernelyard.registry.op import Op
from kernelyard.registry.spec import Determinism, Status, Workload
from kernelyard.verify import compare, form, in_place, precision, room, state
from kernelyard.verify.compare import Errors
from kernelyard.verify.defences import ALL
from kernelyard.verify.findings import Examiner
from kernelyard.verify.inputs import Inputs, make, rewrite
from kernelyard.verify.launch import Enqueue, Launcher
from kernelyard.verify.outcome import CaseResult, Fault, OutOfMemory, checking

LARGE = 1 << 18


def check_workload(
    op: Op,
    kernel: Kernel,
    executable: Executable,
    workload: Workload,
    *,
    device: torch.device,
    seed: int = 0,
    edge: str = "random",
    defences: frozenset[str] = ALL,
) -> CaseResult:
    """Whether the kernel keeps the op's contract on this workload; a reason that names the fault where it does not.

    Never raises for what the kernel does, short of ending the process: for that see `isolation`. Puts back global
    state that the kernel changed. Raises CheckerFailed where the reference, the inputs, a tolerance or the oracle fail.
    """
    name = case_name(workload, edge)
    with checking("the estimate of the memory it needs"):
        answer = room.enough(op, workload, device)
    if not answer:
        return CaseResult(name, Status.UNSUPPORTED, answer.reason)
    case = _Case(op, kernel, executable, workload, device, seed, edge, defences)
    before = state.snapshot(device)
    try:
        found = case.verdict()
        _check_surroundings(before, device, defences)
    except Fault as fault:
        return CaseResult(name, fault.status, fault.reason)
    except OutOfMemory as error:
        return CaseResult(name, Status.UNSUPPORTED, error.asked)
    except Unsupported as error:
        return CaseResult(name, Status.UNSUPPORTED, f"declares support for this workload, then refuses: {error}")
    except BuildFailed as error:
        return CaseResult(name, Status.BUILD_FAILED, str(error))
    finally:
        state.restore(before)
        state.restore_clocks()
    eager = case.eager
    figures = (None, None) if eager is None else (eager.ulp, eager.norm)
    return CaseResult(name, Status.OK, "", found.absolute, found.relative, found.ulp, found.norm, *figures)


def case_name(workload: Workload, edge: str = "random") -> str:
    """'7x129 bf16 nan', with what is unusual about the layout."""
    misaligned = [name for name, spec in workload.tensors if spec is not None and not spec.aligned]
    return f"{workload.label()}{' ' + ','.join(misaligned) + ' misaligned' if misaligned else ''} {edge}"


def _check_surroundings(before: state.Snapshot, device: torch.device, defences: frozenset[str]) -> None:
    if "clock" in defences and (patched := state.patched_clocks()):
        raise Fault(f"replaced a timer or a synchronisation: {', '.join(patched)}")
    if "state" in defences and (changed := state.changed(before, state.snapshot(device))):
        raise Fault(f"left global state changed: {', '.join(changed)}")


@dataclass
class _Case:
    op: Op
    kernel: Kernel
    executable: Executable
    workload: Workload
    device: torch.device
    seed: int
    edge: str
    defences: frozenset[str]
    outputs: list[Tensor] = field(default_factory=list)
    held: list[Tensor] = field(default_factory=list)
    """Outputs of every run so far, and what they held when it ended."""
    eager: Errors | None = None
    """Those of plain torch on the same inputs, where it was run."""

    @cached_property
    def launcher(self) -> Launcher:
        return Launcher(self.op, self.executable, self.device, "poison" in self.defences, "workspace" in self.defences)

    @cached_property
    def examiner(self) -> Examiner:
        return Examiner(self.op, self.workload, self.launcher, self.defences, lambda: self.inputs(surround=False))

    def inputs(self, surround: bool = True) -> Inputs:
        return make(self.op, self.workload, self.device, self.seed, self.edge, surround and "surround" in self.defences)

    def verdict(self) -> Errors:
        """`check`, with what the checker's own code raises told from what the kernel does."""
        with checking("the oracle itself"):
            try:
                return self.check()
            except RuntimeError as error:
                if self.device.type == "cuda" and "CUDA error" in str(error):  # an earlier launch's, told late
                    raise Fault(f"raised {type(error).__name__}: {str(error)[:800]}", Status.CRASHED) from error
                raise

    def check(self) -> Errors:
        """The runs of the module's docstring, in order."""
        threads = set(threading.enumerate())
        inputs = self.inputs()
        plain = self._plain_torch(inputs)
        first = self.run(inputs, plain=plain)
        worst = self._errors(first, inputs, plain)
        del plain
        self._repeat(inputs, first)
        if all(want.numel() <= LARGE for want in inputs.want):
            if self.executable.into is not None:
                self.run(inputs, self.launcher.call, "when it allocates its outputs itself: ")
            self._same_addresses(inputs)
            self._fresh_addresses()
            self._side_stream(inputs)
            self._over_arguments()
        self._late(threads)
        return worst

    def _plain_torch(self, inputs: Inputs) -> tuple[Tensor, ...] | None:
        """On typical values alone; before the kernel runs, so that nothing the kernel does can change it."""
        if self.edge != "random" or not {"values", "eager"} <= self.defences:
            return None
        return precision.plain_torch(self.op, self.kernel, self.workload, inputs)

    def _errors(self, first: list[Tensor], inputs: Inputs, plain: tuple[Tensor, ...] | None) -> Errors:
        """The kernel's errors; a fault where they are far above those of plain torch."""
        own = [compare.errors(got, want) for got, want in zip(first, inputs.want, strict=False)]
        if plain is not None:
            theirs = [compare.errors(got, want) for got, want in zip(plain, inputs.want, strict=True)]
            self.eager, tolerance = compare.most(theirs), self.examiner.tolerance
            for i, (mine, other, got, want) in enumerate(zip(own, theirs, first, inputs.want, strict=True)):
                if words := precision.far_above(self.op, mine, other, got, want, tolerance.of(i)):
                    raise Fault(words)
        return compare.most(own)

    def run(
        self,
        inputs: Inputs,
        enqueue: Enqueue | None = None,
        where: str = "",
        stale: Sequence[Tensor] = (),
        right: Sequence[Tensor] = (),
        plain: tuple[Tensor, ...] | None = None,
    ) -> list[Tensor]:
        """One run and all that it can show.

        `stale`: results of other data. `right`: results known to be right. `plain`: what plain torch gives.
        """
        run = self.launcher.launch(inputs, enqueue)
        found = self.examiner.outside(inputs, run, self.outputs)
        if not (right and len(right) == len(run.held) and all(map(form.same_bits, run.held, right))):
            found += (values := self.examiner.values(inputs, run, list(stale)))
            if values and (words := precision.misses_too(self.op, plain, inputs, self.examiner.tolerance)):
                found.append(words)
        if found:
            raise Fault(where + "; ".join(found))
        self.outputs += run.outputs
        self.held += run.held[: len(run.outputs)]  # later runs write into arguments anew
        return list(run.held)

    def _repeat(self, inputs: Inputs, first: list[Tensor]) -> None:
        second = self.run(inputs, where="in a second run on the same inputs: ", right=first)
        if "repeat" not in self.defences or self.kernel.determinism is Determinism.NONE:
            return
        for one, other in zip(first, second, strict=True):
            if not form.same_bits(one, other):
                differ = compare.differing(form.bits(one), form.bits(other))
                declared = self.kernel.determinism.value
                raise Fault(f"two runs on the same inputs differ in {differ} of {one.numel()} elements; it is declared {declared}: a race?")

    def _same_addresses(self, inputs: Inputs) -> None:
        if "same_pointers" in self.defences:
            other = rewrite(self.op, self.workload, inputs, self.device, self.seed + 1, self.edge)
            self.run(other, where="with other data at the same addresses: ", stale=list(self.held))

    def _fresh_addresses(self) -> None:
        if "fresh" in self.defences:
            self.run(self.inputs(), where="with inputs at fresh addresses (does it keep those of an earlier call?): ")

    def _side_stream(self, inputs: Inputs) -> None:
        """The first data at the first addresses: a kernel that keeps either is another defence's to catch."""
        if "stream" in self.defences and self.device.type == "cuda":
            from kernelyard.verify.streams import run_behind

            behind = "on a side stream, behind the copies that bring its inputs: "
            again = rewrite(self.op, self.workload, inputs, self.device, self.seed, self.edge)
            self.run(again, lambda these: run_behind(these, self.launcher.into), behind)

    def _over_arguments(self) -> None:
        """Only values can be looked at: the inputs are meant to change, and lie unguarded."""
        inputs = self.inputs(surround=False)
        write = in_place.enqueue(self.op, self.executable, inputs) if "in_place" in self.defences else None
        if write and (found := self.examiner.values(inputs, self.launcher.launch(inputs, write), [])):
            raise Fault("written over its own arguments, as the contract allows: " + "; ".join(found))

    def _late(self, threads: set[threading.Thread]) -> None:
        started = [thread for thread in threading.enumerate() if thread not in threads]
        for thread in started:
            _join(thread, 0.5)
        self.launcher.synchronise()
        if "late" in self.defences and not all(map(form.same_bits, self.outputs, self.held)):
            by = f" by a thread it started ({started[0].name})" if started else ""
            raise Fault(f"an output changed after the call had returned: a late write{by}?")


def _join(thread: threading.Thread, limit_s: float) -> None:
    """Wait for a thread to end. One is listed a moment before it runs, and until then can't be joined."""
    until = time.monotonic() + limit_s
    while (left := until - time.monotonic()) > 0:
        try:
            return thread.join(left)
        except RuntimeError:
            time.sleep(0.001)
