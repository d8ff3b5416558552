"""One case of a profile, a prompt or a context, as something a stopwatch can run."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from kernelyard.decoder.cache import KVCache
from kernelyard.decoder.engines import Engine
from kernelyard.decoder.inside import Tap, event, tap
from kernelyard.decoder.model import Decoder
from kernelyard.decoder.report import case_label
from kernelyard.measure.clocks import Stopwatch

MOST_RUNS = 16  # in one sample: an op that takes 50 us of a 1 ms pass would else ask for 20 passes at a time


@dataclass(frozen=True)
class Case:
    """`phase` is 'prefill' (`tokens` into an empty cache) or 'decode' (`new_tokens` steps, one token each, after `context`)."""

    phase: str
    tokens: int
    context: int
    new_tokens: int = 1

    @property
    def capacity(self) -> int:
        """Cache positions that a run needs: no more, since a static cache is read whole."""
        return self.context + self.tokens * self.new_tokens

    @property
    def label(self) -> str:
        """`prefill 64`, `decode @1024`."""
        return case_label(self.phase, self.tokens, self.context)


class Bench:
    """A case with its cache and its tokens on the device, to be run by any engine of one model."""

    def __init__(self, case: Case, model: Decoder, batch: int, seed: int) -> None:
        weights = model.embedding
        self.case, self.device = case, weights.device
        self.cache = KVCache(model.preset, case.capacity, batch=batch, device=weights.device, dtype=weights.dtype)
        self.cache.fill(case.context, seed)
        generator = torch.Generator(weights.device).manual_seed(seed + 1)
        self.tokens = torch.randint(model.preset.vocab, (batch, case.tokens), generator=generator, device=weights.device)

    def logits(self, engine: Engine) -> Tensor:
        """Logits (batch, vocab) in float32 after the case's tokens, on a cache as the case begins."""
        self.cache.rewind(self.case.context)
        return engine(self.tokens, self.cache).float().clone()

    def run(self, engine: Engine) -> None:
        """One run: the prompt, or `new_tokens` greedy steps; ends with the device still at work."""
        self.cache.rewind(self.case.context)
        tokens = self.tokens
        for _ in range(self.case.new_tokens):
            tokens = engine(tokens, self.cache).argmax(-1, keepdim=True)

    def first_ms(self, engine: Engine) -> float:
        """The very first run, until its tokens are there: choosing, building and compiling included."""
        start = time.perf_counter()
        self.run(engine)
        self._wait()
        return (time.perf_counter() - start) * 1e3

    def stopwatch(self, engine: Engine) -> Stopwatch:
        """Times whole runs: on a CPU by the monotonic clock; on a GPU by events, which see the host's gaps as the GPU's waits."""
        elapsed = self._events if self.device.type == "cuda" else self._monotonic
        return self._stopwatch(lambda runs: elapsed(engine, runs))

    def stopwatch_inside(self, engine: Engine, op: str, empty_us: float) -> Stopwatch:
        """Times one op inside whole runs; the tap's own `empty_us` a call is taken off."""
        probe = tap(op, self.device.type)
        tapped = replace(engine, ops=engine.ops.tapped(probe))
        self._inside(tapped, probe, 1)
        taken_off_us = probe.calls * empty_us
        return self._stopwatch(lambda runs: max(self._inside(tapped, probe, runs) - taken_off_us * runs, 0.0))

    def _stopwatch(self, elapsed_us: Callable[[int], float]) -> Stopwatch:
        clock, step = ("events", 0.5) if self.device.type == "cuda" else ("monotonic", 0.1)
        return Stopwatch(clock, elapsed_us, most_calls=MOST_RUNS, resolution_us=step)

    def _monotonic(self, engine: Engine, runs: int) -> float:
        start = time.perf_counter_ns()
        for _ in range(runs):
            self.run(engine)
        return (time.perf_counter_ns() - start) / 1e3

    def _events(self, engine: Engine, runs: int) -> float:
        start, end = event(), event()
        start.record()
        for _ in range(runs):
            self.run(engine)
        end.record()
        self._wait()
        return float(start.elapsed_time(end)) * 1e3

    def _inside(self, engine: Engine, probe: Tap, runs: int) -> float:
        for _ in range(runs):
            self.run(engine)
        return probe.take_us()

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()
