"""What swapped kernels do to a model: prefill and decode, reference against swapped, compiled and CUDA graphs.

All variants of a case are timed by the protocol of `kernelyard.measure`: warmed up, interleaved in random order, at
least three batches, median and 95% interval, the device's lock held. What is timed is what a user waits for:
whole passes with the host's part, ended by the choice of the next token.

- reference       the model in plain torch, which pays no dispatch: what a user has without kernelyard
- swapped         the ops under test as dispatch selects them, the others in plain torch
- compiled        torch.compile over the model in plain torch
- graph, swapped_graph, compiled_graph   on a GPU, the decode step of each as one CUDA graph

Amdahl's inputs come from the same interleaved run: a tap (`kernelyard.decoder.inside`) times the op around each of its
calls within the model, in the reference and in the swapped one. Its share is that time over the untapped pass; its
speed-up is the ratio of the two. Predicted and observed then differ only by what happens outside the op.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from kernelyard.decoder import memory
from kernelyard.decoder.examine import examine
from kernelyard.decoder.model import Decoder
from kernelyard.decoder.presets import Preset
from kernelyard.decoder.report import AmdahlRow, ProfileReport, Progress, Row
from kernelyard.decoder.request import PLAN, Request, request
from kernelyard.measure import device as devices
from kernelyard.measure.interleave import Plan
from kernelyard.registry import machine


def profile(
    preset: str | Preset | None = None,
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
    progress: Callable[[Progress], None] | None = None,
) -> ProfileReport:
    """Profile a preset (tiny, or a Preset of your own) with random weights, or a checkpoint's folder with its own, on a device type.

    Lengths default to those frozen for the device class that fit the context. `ops` are the ops to swap, all by default. `new_tokens` steps
    are timed at each context, and `ms` is one of them. Raises UnknownName, UsageError or Unsupported before any work.
    """
    asked = request(preset, device_type, prompt_lengths=prompt_lengths, context_lengths=context_lengths, new_tokens=new_tokens,
                    batch=batch, dtype=dtype, ops=ops, compile=compile, seed=seed, plan=plan, checkpoint=checkpoint)  # fmt: skip
    what = f"the weights, cache and activations of preset {asked.preset.name} in {asked.dtype}"
    memory.require(asked.need_bytes, asked.device_type, what)
    return run(asked, progress or (lambda step: None))


def run(asked: Request, progress: Callable[[Progress], None]) -> ProfileReport:
    """Do what was asked: a model once, then case by case."""
    started, total = time.monotonic(), len(asked.cases) + 1
    progress(Progress(0, total, f"weights of {asked.preset.name}, {asked.preset.weight_bytes(asked.dtype) / 1e9:.2f} GB"))
    model = _model(asked, getattr(torch, asked.dtype))
    rows, laws, skipped = list[Row](), list[AmdahlRow](), dict[str, str]()
    identity = machine.identity(asked.device_type)
    # The compiler keeps 8 variants of a function; each length is one, and past the limit it would quietly run eager.
    limit = torch._dynamo.config.patch(recompile_limit=8 + 2 * total)
    with limit, devices.lock(identity, lambda text: progress(Progress(0, total, text))):
        before = devices.state(identity)
        for index, case in enumerate(asked.cases, 1):
            progress(Progress(index, total, case.label))
            found, law = examine(asked, case, model, skipped)
            rows += found
            laws.append(law)
        states = before, devices.state(identity)
    progress(Progress(total, total, "done"))
    return ProfileReport(asked.preset.name, identity, asked.dtype, asked.seed, torch.get_num_threads(), asked.swapped,
                         tuple(rows), tuple(laws), skipped, states, time.monotonic() - started)  # fmt: skip


def _model(asked: Request, dtype: torch.dtype) -> Decoder:
    if asked.checkpoint:
        return asked.checkpoint.load(asked.device_type, dtype)
    return Decoder(asked.preset, device=asked.device_type, dtype=dtype, seed=asked.seed)
