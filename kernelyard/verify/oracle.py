"""The oracle: one built kernel on one workload, run up to seven times, each run with something that a wrong kernel trips over.

1. into guarded, poisoned outputs (or allocated by the kernel): values, places of NaN and inf, stores and loads astray
2. again: the same bits, where the kernel is declared deterministic
3. other data at the same addresses          4. the first data at fresh addresses
5. as people call it, with outputs that the kernel allocates: their form, and that they share no memory
6. on a side stream behind a busy one (CUDA)
Then: do earlier outputs still hold what they held, are the inputs, the global state and the clocks as they were?

Results of more than 262144 elements get runs 1 and 2 alone: what the others catch does not depend on size, and each
costs up to a second there.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from kernelyard.errors import BuildFailed, Unsupported
from kernelyard.registry.backend import Executable
from kernelyard.registry.kernel import Kernel
from kernelyard.registry.op import Op
from kernelyard.registry.spec import Determinism, Status, Workload
from kernelyard.verify import compare, diagnosis, form, guards, state
from kernelyard.verify.compare import Errors
from kernelyard.verify.defences import ALL
from kernelyard.verify.guards import Guarded
from kernelyard.verify.inputs import Inputs, make, rewrite
from kernelyard.verify.outcome import CaseResult, Fault

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

    Never raises for what the kernel does, short of ending the process: for that see `isolation`.
    """
    case = _Case(op, kernel, executable, workload, device, seed, edge, defences)
    name = case_name(workload, edge)
    before = state.snapshot(device)
    try:
        worst = case.check()
        _check_surroundings(before, device, defences)
    except Fault as fault:
        return CaseResult(name, fault.status, fault.reason)
    except Unsupported as error:
        return CaseResult(name, Status.UNSUPPORTED, f"declares support for this workload, then refuses: {error}")
    except BuildFailed as error:
        return CaseResult(name, Status.BUILD_FAILED, str(error))
    finally:
        state.restore(before)
        state.restore_clocks()
    return CaseResult(name, Status.OK, "", worst.absolute, worst.relative, worst.ulp)


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
    kept: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    """Outputs, and what they held when their run ended."""

    def check(self) -> Errors:
        threads = set(threading.enumerate())
        inputs = self._inputs(self.seed)
        self._run(inputs)
        first = [kept for _, kept in self.kept]
        worst = [compare.errors(got, want) for got, want in zip(first, inputs.want, strict=True)]
        self._repeat(inputs, first)
        if all(want.numel() <= LARGE for want in inputs.want):
            if self.executable.into is not None:
                self._run(inputs, self._called, "when it allocates its outputs itself: ")
            self._same_pointers(inputs)
            self._fresh()
            self._side_stream()
        self._late(threads)
        return Errors(*(max(values) for values in zip(*((w.absolute, w.relative, w.ulp) for w in worst), strict=True)))

    # The runs ---------------------------------------------------------------------------------------

    def _repeat(self, inputs: Inputs, first: list[Tensor]) -> None:
        second = self._run(inputs, where="in a second run on the same inputs: ", known_right=first)
        if "repeat" not in self.defences or self.kernel.determinism is Determinism.NONE:
            return
        for one, other in zip(first, second, strict=True):
            if not form.same_bits(one, other):
                differ = int((form.bits(one) != form.bits(other)).sum())
                declared = self.kernel.determinism.value
                raise Fault(f"two runs on the same inputs differ in {differ} of {one.numel()} elements; it is declared {declared}: a race?")

    def _same_pointers(self, inputs: Inputs) -> None:
        if "same_pointers" in self.defences:
            earlier = [kept for _, kept in self.kept]
            other = rewrite(self.op, self.workload, inputs, self.device, self.seed + 1, self.edge)
            self._run(other, where="with other data at the same addresses: ", earlier=earlier)

    def _fresh(self) -> None:
        if "fresh" in self.defences:
            self._run(self._inputs(self.seed), where="with inputs at fresh addresses (does it keep those of an earlier call?): ")

    def _side_stream(self) -> None:
        if "stream" in self.defences and self.device.type == "cuda":
            from kernelyard.verify.streams import run_behind

            inputs = self._inputs(self.seed)
            self._run(inputs, lambda these: run_behind(these, self._enqueue), "on a side stream, behind its inputs' own copies: ")

    def _late(self, threads: set[threading.Thread]) -> None:
        started = [thread for thread in threading.enumerate() if thread not in threads]
        for thread in started:
            thread.join(0.5)
        self._synchronise()
        if "late" in self.defences and any(not form.same_bits(now, then) for now, then in self.kept):
            by = f" by a thread it started ({started[0].name})" if started else ""
            raise Fault(f"an output changed after the call had returned: a late write{by}?")

    # One run ----------------------------------------------------------------------------------------

    def _inputs(self, seed: int) -> Inputs:
        return make(self.op, self.workload, self.device, seed, self.edge, "surround" in self.defences)

    def _run(
        self,
        inputs: Inputs,
        launch: Callable[[Inputs], tuple[tuple[Tensor, ...], list[Guarded]]] | None = None,
        where: str = "",
        earlier: list[Tensor] | None = None,
        known_right: Sequence[Tensor] = (),
    ) -> tuple[Tensor, ...]:
        """Launches once and looks at everything that one run can show; Fault with all that was found."""
        outputs, regions = self._launched(launch or self._enqueue, inputs)
        found = []
        if "guards" in self.defences:
            found += [f"a store out of bounds: {words}" for region in regions if (words := guards.astray(region))]
        if "inputs" in self.defences and (words := inputs.changed()):
            found.append(words)
        found += form.faults(self.op, inputs.args, outputs, [output for output, _ in self.kept], self.defences)
        comparable = len(outputs) == len(inputs.want) and all(
            isinstance(o, Tensor) and o.shape == w.shape and o.device == w.device for o, w in zip(outputs, inputs.want, strict=False)
        )
        if comparable and not (known_right and all(map(form.same_bits, outputs, known_right))):
            found += self._differences(inputs, outputs, regions, earlier or [])
        if found:
            raise Fault(where + "; ".join(found))
        if not comparable:
            raise Fault(where + "its outputs can't be compared with the reference's")
        self.kept += [(output, output.detach().clone()) for output in outputs]
        return outputs

    def _launched(
        self, launch: Callable[[Inputs], tuple[tuple[Tensor, ...], list[Guarded]]], inputs: Inputs
    ) -> tuple[tuple[Any, ...], list[Guarded]]:
        try:
            result = launch(inputs)
            self._synchronise()
        except (Unsupported, BuildFailed, Fault):
            raise
        except Exception as error:  # whatever a kernel raises is the kernel's fault
            raise Fault(f"raised {type(error).__name__}: {str(error)[:800]}", Status.CRASHED) from error
        return result

    def _enqueue(self, inputs: Inputs, poison: int = guards.POISON_BYTE) -> tuple[tuple[Tensor, ...], list[Guarded]]:
        """Into guarded, poisoned outputs where the kernel can write into given ones."""
        if self.executable.into is None:
            return self._called(inputs)
        regions = [guards.output(empty) for empty in self.op.empty(*inputs.args)]
        for region in regions:
            guards.poison(region, poison if "poison" in self.defences else 0)
        self.executable.into(tuple(region.tensor for region in regions), *inputs.args)
        return tuple(region.tensor for region in regions), regions

    def _called(self, inputs: Inputs) -> tuple[tuple[Tensor, ...], list[Guarded]]:
        """As people call it. Poisoned memory of the right size was just freed, and is what the allocator hands out next."""
        if "poison" in self.defences:
            junk = [torch.empty_like(empty).view(torch.uint8).fill_(guards.POISON_BYTE) for empty in self.op.empty(*inputs.args) * 2
                    if empty.numel()]  # fmt: skip
            del junk
        outputs = self.executable.call(*inputs.args)
        return (tuple(outputs) if isinstance(outputs, (tuple, list)) else (outputs,)), []

    def _synchronise(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    # What differs, and why --------------------------------------------------------------------------

    def _differences(self, inputs: Inputs, outputs: tuple[Tensor, ...], regions: list[Guarded], earlier: list[Tensor]) -> list[str]:
        if "values" not in self.defences:
            return []
        tolerance = self.op.tolerance(self.workload)
        found = []
        for i, (got, want) in enumerate(zip(outputs, inputs.want, strict=True)):
            bad = compare.wrong(got, want, tolerance, "nonfinite" in self.defences)
            if bad is None:
                continue
            words = diagnosis.sentence(bad, got, want, tolerance)
            why = self._over_read(bad, got, want) or self._unwritten(inputs, bad, got, i, bool(regions)) or self._stale(got, earlier)
            why = why or diagnosis.cause(self.op, inputs.wide, bad, got, want, i)
            found.append((f"output {i}: " if len(outputs) > 1 else "") + words + (f". {why[0].upper()}{why[1:]}" if why else ""))
        return found

    def _unwritten(self, inputs: Inputs, bad: Tensor, got: Tensor, output: int, guarded: bool) -> str:
        """What comes of the poison, proved by a run over another filling: elements that were never written hold that."""
        poisoned = guards.unwritten(got) & bad
        if not guarded or not bool(poisoned.any()):
            return ""
        outputs, _ = self._launched(lambda these: self._enqueue(these, guards.FINITE_BYTE), inputs)
        kept = (outputs[output].contiguous().view(torch.uint8) == guards.FINITE_BYTE).view(*got.shape, -1).all(-1)
        if bool((kept & poisoned).any()):
            return f"{int(poisoned.sum())} elements were left unwritten{diagnosis.place(poisoned)}"
        reads = bool((~outputs[output].isnan() & poisoned).any())
        return "the result uses what the output held before the call: it reads its own output" if reads else ""

    def _stale(self, got: Tensor, earlier: list[Tensor]) -> str:
        if any(old.shape == got.shape and old.dtype == got.dtype and form.same_bits(old, got) for old in earlier):
            return "the result of the earlier data came back: it is cached by address"
        return ""

    def _over_read(self, bad: Tensor, got: Tensor, want: Tensor) -> str:
        """A NaN out of finite inputs that is gone when they stand in zeros came from beside them."""
        if "surround" not in self.defences or not bool((got.isnan() & want.isfinite() & bad).any()):
            return ""
        calm = make(self.op, self.workload, self.device, self.seed, self.edge, surround=False)
        outputs, _ = self._launched(self._enqueue, calm)
        still = any(bool((o.isnan() & w.isfinite()).any()) for o, w in zip(outputs, calm.want, strict=True))
        return "" if still else "a load out of bounds: the NaN that stands beside the inputs got into the result"
