"""What one run shows: stores and loads astray, inputs changed, outputs of the wrong form, values that differ and why."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from kernelyard.registry.op import Op
from kernelyard.registry.spec import Tolerance, Workload
from kernelyard.verify import compare, diagnosis, form, guards, workspace
from kernelyard.verify.inputs import Inputs
from kernelyard.verify.launch import Launched, Launcher
from kernelyard.verify.outcome import Fault, checking


@dataclass(frozen=True)
class Examiner:
    """Looks at runs of one kernel on one workload. `calm()` makes the same inputs with zeros, not NaN, around them."""

    op: Op
    workload: Workload
    launcher: Launcher
    defences: frozenset[str]
    calm: Callable[[], Inputs]

    @property
    def tolerance(self) -> Tolerance:
        """The op's, derived for this workload."""
        with checking(f"the tolerance of {self.op.name}"):
            return self.op.tolerance(self.workload)

    def outside(self, inputs: Inputs, run: Launched, earlier: list[Tensor]) -> list[str]:
        """All but the values. `earlier` are outputs of runs before, still alive."""
        found = []
        if "guards" in self.defences:
            found += [f"a store out of bounds: {words}" for region in run.regions if (words := guards.astray(region))]
            found += workspace.astray(list(run.workspaces), run.outputs)
        if "inputs" in self.defences and (words := inputs.changed()):
            found.append(words)
        return found + form.faults(self.op, inputs.args, run.outputs, earlier, self.defences)

    def values(self, inputs: Inputs, run: Launched, stale: list[Tensor]) -> list[str]:
        """Which outputs differ from the reference, where, and what they are instead. `stale` are results of other data."""
        if "values" not in self.defences:
            return []
        if not _comparable(run, inputs):
            return ["its outputs can't be compared with the reference's"]
        tolerance = self.tolerance
        found = []
        for i, (got, want) in enumerate(zip(run.held, inputs.want, strict=True)):
            bad = compare.wrong(got, want, tolerance.of(i), "nonfinite" in self.defences)
            if bad is not None:
                why = self._why(inputs, run, bad, got, i, stale)
                words = diagnosis.sentence(bad, got, want, tolerance.of(i)) + (f". {why[0].upper()}{why[1:]}" if why else "")
                found.append(f"{self._named(i)}: {words}" if len(run.held) > 1 else words)
        return found

    def _named(self, output: int) -> str:
        """What a result is called: an output by its place, an argument that is written into by its name."""
        return f"output {output}" if output < self.op.returns else f"{self.op.mutated[output - self.op.returns]} afterwards"

    def _why(self, inputs: Inputs, run: Launched, bad: Tensor, got: Tensor, output: int, stale: list[Tensor]) -> str:
        """Experiments before guesses; of a large result, on the part around the first element that is wrong."""
        if any(old.shape == got.shape and old.dtype == got.dtype and form.same_bits(old, got) for old in stale):
            return "the result of the earlier data came back: it is cached by address"
        if bad.numel() > diagnosis.MOST_ELEMENTS:
            return self._why_large(inputs, run, bad, got, output)
        want = inputs.want[output]
        experiments = (
            self._elsewhere(inputs, output),
            self._over_read(bad, got, want),
            self._unwritten(inputs, run, bad, output),
            self._assumes_zero(inputs, run, output),
        )
        found = next(filter(None, experiments), "") or diagnosis.cause(self.op, inputs.wide, bad, got, want, output)
        return found or diagnosis.suggestion(bad)

    def _why_large(self, inputs: Inputs, run: Launched, bad: Tensor, got: Tensor, output: int) -> str:
        """From the part around the first element that is wrong; without experiments that need the inputs twice."""
        part = diagnosis.window(bad)
        unwritten = self._unwritten(inputs, run, bad, output)
        words = unwritten or diagnosis.cause(self.op, (), part(bad), part(got), part(inputs.want[output]), output)
        hint = diagnosis.suggestion(bad)
        return hint or (words and f"around the first of them {words}")

    def _elsewhere(self, inputs: Inputs, output: int) -> str:
        """Right once the device is waited for, and nothing but the NaN that stood there first behind a busy stream."""
        if self.launcher.device.type != "cuda":
            return ""
        from kernelyard.verify.streams import run_behind

        want, tolerance = inputs.want[output], self.tolerance.of(output)
        try:
            settled = replace(self.launcher, settled=True).launch(inputs).held[output]
            if compare.wrong(settled, want, tolerance) is not None:
                return ""
            behind = self.launcher.launch(inputs, lambda these: run_behind(these, self.launcher.into)).held[output]
        except Fault:  # an experiment: what it raises now it raised for another reason
            return ""
        overtaken = behind.isnan() | want.isnan()
        return "it overtakes the current stream: it runs on one of its own" if bool(overtaken.all()) else ""

    def _over_read(self, bad: Tensor, got: Tensor, want: Tensor) -> str:
        """A NaN out of finite inputs that is gone when they stand in zeros came from beside them."""
        if "surround" not in self.defences or not bool((got.isnan() & want.isfinite() & bad).any()):
            return ""
        calm = self.calm()
        again = self.launcher.launch(calm)
        still = any(compare.has_nan(o, w) for o, w in zip(again.held, calm.want, strict=True))
        return "" if still else "a load out of bounds: the NaN that stands beside the inputs got into the result"

    def _unwritten(self, inputs: Inputs, run: Launched, bad: Tensor, output: int) -> str:
        """What comes of the poison, proved by a run over another filling: elements that were never written hold that.

        A sum with the poison is a NaN too, on a CPU the very same one, on a GPU the one that stands for all.
        """
        part = diagnosis.window(bad)  # all of a small result
        held = part(run.held[output])
        poisoned = guards.unwritten(held) & part(bad)
        of_poison = poisoned | (held.isnan() & part(bad))
        if not run.regions or not bool(of_poison.any()):
            return ""
        again = part(self.launcher.launch(inputs, lambda these: self.launcher.into(these, guards.FINITE_BYTE)).held[output])
        kept = (again.contiguous().view(torch.uint8) == guards.FINITE_BYTE).view(*poisoned.shape, -1).all(-1)
        if bool((kept & poisoned).any()):
            return f"{int(poisoned.sum())} elements were left unwritten{diagnosis.place(poisoned)}"
        reads = bool((~again.isnan() & of_poison).any())
        return "the result uses what the output held before the call: it reads its own output" if reads else ""

    def _assumes_zero(self, inputs: Inputs, run: Launched, output: int) -> str:
        """A result that is right once the kernel's fresh memory is zeroed beforehand."""
        if not run.workspaces:
            return ""
        enqueue = self.launcher.into if run.regions else self.launcher.call
        try:
            again = self.launcher.launch(inputs, lambda these: enqueue(these, workspace_byte=0)).held[output]
        except Fault:  # an experiment: what it raises now it raised for another reason
            return ""
        if compare.wrong(again, inputs.want[output], self.tolerance.of(output)) is not None:
            return ""
        sizes = ", ".join(dict.fromkeys(workspace.described(region.tensor) for region in run.workspaces))
        return f"with its fresh memory ({sizes}) zeroed beforehand it is right: it relies on what new memory holds"


def _comparable(run: Launched, inputs: Inputs) -> bool:
    return len(run.held) == len(inputs.want) and all(
        isinstance(o, Tensor) and o.shape == w.shape and o.device == w.device for o, w in zip(run.held, inputs.want, strict=True)
    )
