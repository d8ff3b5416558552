"""What a profile is asked for, checked and filled in before any work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kernelyard.decoder import checkpoint as checkpoints
from kernelyard.decoder import presets
from kernelyard.decoder.cases import Case
from kernelyard.decoder.checkpoint import Checkpoint
from kernelyard.decoder.ops import NAMES, check_names
from kernelyard.decoder.presets import Lengths, Preset
from kernelyard.errors import UsageError
from kernelyard.measure.interleave import Plan
from kernelyard.registry import machine
from kernelyard.registry.spec import DeclarationError, dtype_name

DTYPES = ("float32", "bfloat16", "float16")
PLAN = Plan(budget_s=4.0, most_batches=10)
"""Four seconds a case hold a tiny model's profile on two cores under a minute and a half, compilation included."""


@dataclass(frozen=True)
class Request:
    """A profile that makes sense: names known, lengths within the preset's context. Made by `request`, before any work.

    `checkpoint` has the weights, and its shape is the preset; without one they are random.
    """

    preset: Preset
    device_type: str
    dtype: str
    lengths: Lengths
    batch: int
    swapped: tuple[str, ...]
    seed: int
    compile: bool
    plan: Plan
    checkpoint: Checkpoint | None = None

    @property
    def cases(self) -> tuple[Case, ...]:
        """Prompts, then contexts."""
        new = self.lengths.new_tokens
        return (
            *(Case("prefill", tokens, 0) for tokens in self.lengths.prompts),
            *(Case("decode", 1, context, new) for context in self.lengths.contexts),
        )

    @property
    def need_bytes(self) -> int:
        """Weights, the largest cache and the largest pass."""
        case = max(self.cases, key=lambda case: case.capacity)
        tokens = max(case.tokens for case in self.cases)
        cache = self.preset.cache_bytes(self.dtype, self.batch, case.capacity)
        return self.preset.weight_bytes(self.dtype) + cache + self.preset.working_bytes(self.dtype, self.batch, tokens)


def request(
    preset: str | Preset | None,
    device_type: str | None = None,
    *,
    prompt_lengths: Sequence[int] | None = None,
    context_lengths: Sequence[int] | None = None,
    new_tokens: int | None = None,
    batch: int = 1,
    dtype: str | None = None,
    ops: Sequence[str] | None = None,
    compile: bool = True,
    seed: int = 0,
    plan: Plan = PLAN,
    checkpoint: str | Path | None = None,
) -> Request:
    """Check what was asked and fill in the defaults; touches no device. Without preset and checkpoint, the preset is tiny."""
    if preset is not None and checkpoint is not None:
        raise UsageError("a preset and a checkpoint were given.", do="Give one: a checkpoint's config.json has its shape.")
    found = None if checkpoint is None else checkpoints.find(checkpoint)
    shape = found.preset if found else preset if isinstance(preset, Preset) else presets.find(preset or "tiny")
    kind = machine.check_device(device_type)
    frozen = _fitting(presets.LENGTHS[kind], new_tokens, shape.context)
    lengths = Lengths(
        frozen.prompts if prompt_lengths is None else tuple(prompt_lengths),
        frozen.contexts if context_lengths is None else tuple(context_lengths),
        frozen.new_tokens,
    )
    asked = Request(
        shape,
        kind,
        _dtype(dtype or presets.DTYPES[kind]),
        lengths,
        batch,
        check_names(None if ops is None else tuple(ops)),
        seed,
        compile,
        plan,
        found,
    )
    _check_lengths(asked)
    return asked


def _fitting(frozen: Lengths, new_tokens: int | None, context: int) -> Lengths:
    """The frozen lengths that fit a model's context, a checkpoint's may be shorter than any preset's, with the new tokens asked for."""
    new = frozen.new_tokens if new_tokens is None else new_tokens
    prompts = tuple(length for length in frozen.prompts if length <= context)
    return Lengths(prompts, tuple(length for length in frozen.contexts if length + new <= context), new)


def _dtype(name: str) -> str:
    try:
        full = dtype_name(name)
    except DeclarationError as error:
        raise UsageError(f"{error}.") from error
    if full not in DTYPES:
        raise UsageError(f"the decoder has no dtype {full}.", exists=f"There are: {', '.join(DTYPES)}.")
    return full


def _check_lengths(asked: Request) -> None:
    lengths, most = asked.lengths, asked.preset.context
    if not asked.cases:
        exists = f"{asked.preset.name} takes {most} positions."
        raise UsageError("no prompt and no context length was given.", exists=exists, do="Give at least one.")
    if not asked.swapped:
        raise UsageError("no op to swap was given.", exists=f"There are: {', '.join(NAMES)}.")
    if min((*lengths.prompts, *lengths.contexts, lengths.new_tokens, asked.batch)) < 1:
        raise UsageError(f"lengths {lengths.prompts}, {lengths.contexts}, {lengths.new_tokens} new tokens, batch {asked.batch}.",
                         do="Each must be 1 or more.")  # fmt: skip
    for case in asked.cases:
        if case.capacity > most:
            raise UsageError(
                f"{case.label} takes {case.capacity} positions ({case.context} + {case.tokens * case.new_tokens}).",
                exists=f"Preset {asked.preset.name} has {most}.",
            )
