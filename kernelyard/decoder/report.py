"""What a profile found, as records, sentences and the stable JSON of `kernelyard profile --json`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from kernelyard.measure.state import DeviceState
from kernelyard.measure.stats import Interval
from kernelyard.registry.dispatch import Selection
from kernelyard.registry.spec import DeviceIdentity


@dataclass(frozen=True)
class Progress:
    """How far a profile is: `done` of `total` equal-looking parts, and what is being done now."""

    done: int
    total: int
    text: str


def case_label(phase: str, tokens: int, context: int) -> str:
    """`prefill 64`, `decode @1024`."""
    return f"prefill {tokens}" if phase == "prefill" else f"decode @{context}"


@dataclass(frozen=True)
class Row:
    """One variant in one case. `speedup` is the reference's time over this one's, paired by batch; None for the reference.

    `ms` is the time of the prompt, or of one decode step; `tokens` are those it handles for each of `batch` sequences.
    `logit_difference` is the largest |logit - reference's| in standard deviations of the reference's logits.
    """

    phase: str
    tokens: int
    context: int
    batch: int
    variant: str
    ms: Interval
    speedup: Interval | None
    first_ms: float
    logit_difference: float
    agrees: bool
    noisy: str = ""

    @property
    def label(self) -> str:
        """As `Case.label`."""
        return case_label(self.phase, self.tokens, self.context)

    @property
    def tokens_per_s(self) -> float:
        """Of all sequences together."""
        return self.batch * self.tokens / self.ms.median * 1e3

    def to_json(self) -> dict[str, Any]:
        """The stable names first."""
        return {
            "phase": self.phase, "tokens": self.tokens, "context": self.context, "variant": self.variant,
            "ms": self.ms.median, "tokens_per_s": self.tokens_per_s, "batch": self.batch,
            "low_ms": self.ms.low, "high_ms": self.ms.high, "speedup": _interval(self.speedup), "first_ms": self.first_ms,
            "logit_difference": self.logit_difference, "agrees": self.agrees, "noisy": self.noisy,
        }  # fmt: skip


@dataclass(frozen=True)
class OpShare:
    """One op inside one case: its calls in a run of the model, its share of the reference's time, how much faster it got.

    `share_after` is its share of the swapped run. `selections` are the kernels dispatch picked, with their reasons.
    """

    op: str
    calls: int
    share: Interval
    speedup: Interval
    share_after: Interval
    selections: tuple[Selection, ...]

    @property
    def kernels(self) -> tuple[str, ...]:
        """Names of the kernels, each once."""
        return tuple(dict.fromkeys(selection.kernel.name for selection in self.selections))

    def to_json(self) -> dict[str, Any]:
        """One op of an Amdahl row."""
        return {
            "op": self.op, "calls": self.calls, "share": self.share.median, "share_low": self.share.low, "share_high": self.share.high,
            "speedup": self.speedup.median, "speedup_low": self.speedup.low, "speedup_high": self.speedup.high,
            "kernels": [_selection(selection) for selection in self.selections],
        }  # fmt: skip


@dataclass(frozen=True)
class AmdahlRow:
    """Predicted and observed gain of one case, side by side: the reference's time over the swapped model's."""

    phase: str
    tokens: int
    context: int
    ops: tuple[OpShare, ...]
    share: float
    predicted: Interval
    observed: Interval
    sentence: str

    def to_json(self) -> dict[str, Any]:
        """The stable names first."""
        return {
            "share": self.share, "predicted": self.predicted.median, "observed": self.observed.median,
            "predicted_low": self.predicted.low, "predicted_high": self.predicted.high,
            "observed_low": self.observed.low, "observed_high": self.observed.high,
            "phase": self.phase, "tokens": self.tokens, "context": self.context,
            "ops": [op.to_json() for op in self.ops], "sentence": self.sentence,
        }  # fmt: skip


@dataclass(frozen=True)
class ProfileReport:
    """Everything a profile found. `states` are the device's before and after. `skipped` says which variants could not run, and why."""

    preset: str
    device: DeviceIdentity
    dtype: str
    seed: int
    threads: int
    swapped: tuple[str, ...]
    rows: tuple[Row, ...]
    amdahl: tuple[AmdahlRow, ...]
    skipped: Mapping[str, str] = field(default_factory=dict)
    states: tuple[DeviceState, DeviceState] | None = None
    seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """What `--json` prints, but for `schema`. `amdahl` is the first decode case (else the first case), `amdahl.rows` all of them."""
        first = next((row for row in self.amdahl if row.phase == "decode"), self.amdahl[0])
        return {
            "preset": self.preset,
            "device": {"type": self.device.type, "name": self.device.name, "key": self.device.key()},
            "rows": [row.to_json() for row in self.rows],
            "amdahl": {**first.to_json(), "rows": [row.to_json() for row in self.amdahl]},
            "dtype": self.dtype, "seed": self.seed, "threads": self.threads, "swapped": list(self.swapped),
            "skipped": [{"variant": name, "reason": reason} for name, reason in self.skipped.items()],
            "sentences": list(self.sentences), "seconds": self.seconds,
            "states": [asdict(state) for state in self.states or ()],
        }  # fmt: skip

    @property
    def sentences(self) -> tuple[str, ...]:
        """What was found, in words: gains, losses and no effect alike, then what speaks against a figure."""
        wrong = [
            f"{row.label}: {row.variant} is wrong, its logits are {row.logit_difference:.2g} standard deviations off."
            for row in self.rows if not row.agrees
        ]  # fmt: skip
        noisy = [row.noisy for row in self.rows if row.noisy]
        doubts = [f"{len(noisy)} of {len(self.rows)} times are doubtful, the first because {noisy[0]}."] if noisy else []
        return (
            *(row.sentence for row in self.amdahl),
            *wrong,
            *doubts,
            *(f"{name} was left out: {why}." for name, why in self.skipped.items()),
        )


def _selection(selection: Selection) -> dict[str, Any]:
    workload, kernel, config = selection.workload.label(), selection.kernel.name, dict(selection.config)
    return {"workload": workload, "kernel": kernel, "config": config, "reason": selection.reason}


def _interval(value: Interval | None) -> dict[str, float] | None:
    return None if value is None else {"median": value.median, "low": value.low, "high": value.high}
