"""What one run shows: stores and loads astray, inputs changed, outputs of the wrong form, values that differ and why."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from kernelyard.registry.op import Op
from kernelyard.registry.spec import Workload
from kernelyard.verify import compare, diagnosis, form, guards
from kernelyard.verify.inputs import Inputs
from kernelyard.verify.launch import Launched, Launcher


@dataclass(frozen=True)
class Examiner:
    """Looks at runs of one kernel on one workload. `calm()` makes the same inputs with zeros, not NaN, around them."""

    op: Op
    workload: Workload
    launcher: Launcher
    defences: frozenset[str]
    calm: Callable[[], Inputs]

    def outside(self, inputs: Inputs, run: Launched, earlier: list[Tensor]) -> list[str]:
        """All but the values. `earlier` are outputs of runs before, still alive."""
        found = []
        if "guards" in self.defences:
            found += [f"a store out of bounds: {words}" for region in run.regions if (words := guards.astray(region))]
        if "inputs" in self.defences and (words := inputs.changed()):
            found.append(words)
        return found + form.faults(self.op, inputs.args, run.outputs, earlier, self.defences)

    def values(self, inputs: Inputs, run: Launched, stale: list[Tensor]) -> list[str]:
        """Which outputs differ from the reference, where, and what they are instead. `stale` are results of other data."""
        if "values" not in self.defences:
            return []
        if not _comparable(run, inputs):
            return ["its outputs can't be compared with the reference's"]
        tolerance = self.op.tolerance(self.workload)
        found = []
        for i, (got, want) in enumerate(zip(run.held, inputs.want, strict=True)):
            bad = compare.wrong(got, want, tolerance, "nonfinite" in self.defences)
            if bad is not None:
                why = self._why(inputs, run, bad, got, i, stale)
                words = diagnosis.sentence(bad, got, want, tolerance) + (f". {why[0].upper()}{why[1:]}" if why else "")
                found.append(f"output {i}: {words}" if len(run.held) > 1 else words)
        return found

    def _why(self, inputs: Inputs, run: Launched, bad: Tensor, got: Tensor, output: int, stale: list[Tensor]) -> str:
        """Experiments before guesses."""
        if any(old.shape == got.shape and old.dtype == got.dtype and form.same_bits(old, got) for old in stale):
            return "the result of the earlier data came back: it is cached by address"
        experiments = (self._over_read(bad, got, inputs.want[output]), self._unwritten(inputs, run, bad, got, output))
        return next(filter(None, experiments), "") or diagnosis.cause(self.op, inputs.wide, bad, got, inputs.want[output], output)

    def _over_read(self, bad: Tensor, got: Tensor, want: Tensor) -> str:
        """A NaN out of finite inputs that is gone when they stand in zeros came from beside them."""
        if "surround" not in self.defences or not bool((got.isnan() & want.isfinite() & bad).any()):
            return ""
        calm = self.calm()
        again = self.launcher.launch(calm)
        still = any(bool((o.isnan() & w.isfinite()).any()) for o, w in zip(again.held, calm.want, strict=True))
        return "" if still else "a load out of bounds: the NaN that stands beside the inputs got into the result"

    def _unwritten(self, inputs: Inputs, run: Launched, bad: Tensor, got: Tensor, output: int) -> str:
        """What comes of the poison, proved by a run over another filling: elements that were never written hold that."""
        poisoned = guards.unwritten(got) & bad
        if not run.regions or not bool(poisoned.any()):
            return ""
        again = self.launcher.launch(inputs, lambda these: self.launcher.into(these, guards.FINITE_BYTE)).held[output]
        kept = (again.contiguous().view(torch.uint8) == guards.FINITE_BYTE).view(*got.shape, -1).all(-1)
        if bool((kept & poisoned).any()):
            return f"{int(poisoned.sum())} elements were left unwritten{diagnosis.place(poisoned)}"
        reads = bool((~again.isnan() & poisoned).any())
        return "the result uses what the output held before the call: it reads its own output" if reads else ""


def _comparable(run: Launched, inputs: Inputs) -> bool:
    return len(run.held) == len(inputs.want) and all(
        isinstance(o, Tensor) and o.shape == w.shape and o.device == w.device for o, w in zip(run.held, inputs.want, strict=True)
    )
