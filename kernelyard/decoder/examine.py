"""One case examined: every variant checked against the reference, timed beside it, and Amdahl's law applied to what was swapped."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from kernelyard.decoder import amdahl
from kernelyard.decoder.cases import Bench, Case
from kernelyard.decoder.engines import Engine, compiled, eager, graphed
from kernelyard.decoder.inside import Calls, empty_cost_us
from kernelyard.decoder.model import Decoder
from kernelyard.decoder.report import AmdahlRow, OpShare, Row
from kernelyard.decoder.request import Request
from kernelyard.decoder.words import sentence
from kernelyard.errors import MeasurementFailed
from kernelyard.measure import device as devices
from kernelyard.measure.interleave import interleave
from kernelyard.measure.measured import Measured
from kernelyard.measure.stats import Interval, median_interval
from kernelyard.registry import dispatch, machine, registry
from kernelyard.registry.spec import Workload

# Largest logit difference that rounding explains, in standard deviations of the logits: sums of some thousand terms in
# another order in float32; some hundred roundings of 2^-9 each, adding up like a random walk, in the short dtypes.
AGREEMENT = {"float32": 1e-2, "bfloat16": 0.5, "float16": 0.1}

Counted = Mapping[str, Counter[Workload]]


def examine(asked: Request, case: Case, model: Decoder, skipped: dict[str, str]) -> tuple[list[Row], AmdahlRow]:
    """The rows and the Amdahl row of one case; a variant that can't run goes to `skipped` with its reason."""
    bench = Bench(case, model, asked.batch, asked.seed)
    started = _start(bench, _variants(asked, bench, model), skipped)
    engines = [engine for engine, _ in started.values()]
    differences = _differences(bench, engines)
    counted = _count(bench, started["swapped"][0], asked.swapped)
    measured = _measure(asked, bench, engines, counted)
    rows = [_row(asked, case, measured, name, first_ms, differences[name]) for name, (_, first_ms) in started.items()]
    return rows, _law(case, measured, _shares(measured, counted, case.new_tokens))


def _variants(asked: Request, bench: Bench, model: Decoder) -> dict[str, Callable[[], Engine]]:
    """How to make each variant, reference and swapped first."""
    makers: dict[str, Callable[[], Engine]] = {
        "reference": lambda: eager("reference", model),
        "swapped": lambda: eager("swapped", model, asked.swapped),
    }
    if asked.compile:
        makers["compiled"] = lambda: compiled("compiled", model)
    if asked.device_type == "cuda" and bench.case.phase == "decode":
        names = {"reference": "graph", "swapped": "swapped_graph", "compiled": "compiled_graph"}
        makers |= {names[base]: partial(_graph_of, names[base], maker, bench) for base, maker in makers.items()}
    return makers


def _graph_of(name: str, maker: Callable[[], Engine], bench: Bench) -> Engine:
    bench.cache.rewind(bench.case.context)
    return graphed(name, maker(), bench.cache)


def _start(bench: Bench, makers: Mapping[str, Callable[[], Engine]], skipped: dict[str, str]) -> dict[str, tuple[Engine, float]]:
    """Each variant made and run for the first time, with the milliseconds that took; what torch can't compile or capture is skipped."""
    started = {}
    for name, make in makers.items():
        try:
            engine = make()
            started[name] = engine, bench.first_ms(engine)
        except RuntimeError as error:
            if name in ("reference", "swapped"):
                raise
            skipped[name] = f"{type(error).__name__}: {(str(error).strip().splitlines() or ['no message'])[0]}"
    return started


def _differences(bench: Bench, engines: Iterable[Engine]) -> dict[str, float]:
    """The largest logit difference of each engine from the first, in standard deviations of the first's logits; inf for a NaN."""
    first, *others = engines
    expected = bench.logits(first)
    scale = float(expected.std())
    found = {first.name: 0.0}
    for engine in others:
        worst = float((bench.logits(engine) - expected).abs().max())
        found[engine.name] = worst / scale if math.isfinite(worst) else math.inf
    return found


def _count(bench: Bench, swapped: Engine, names: tuple[str, ...]) -> Counted:
    """The workloads of the swapped ops in one run, and how often each is called."""
    calls = Calls(bench.device.type)
    tapped = replace(swapped, ops=swapped.ops.tapped(calls))
    bench.run(tapped)
    return {name: calls.by_op[name] for name in names if calls.by_op[name]}


def _measure(asked: Request, bench: Bench, engines: Sequence[Engine], ops: Iterable[str]) -> Measured:
    """Whole runs of every engine, and each op inside reference and swapped, all interleaved; microseconds of a run."""
    watches = {engine.name: bench.stopwatch(engine) for engine in engines}
    empty_us = empty_cost_us(asked.device_type)
    for engine in engines[:2]:
        for op in ops:
            watches[_inside(engine.name, op)] = bench.stopwatch_inside(engine, op, empty_us)
    return interleave(watches, asked.plan, "call", devices.guard(machine.identity(asked.device_type)))


def _inside(engine: str, op: str) -> str:
    return f"{engine}/{op}"


def _row(asked: Request, case: Case, measured: Measured, name: str, first_ms: float, difference: float) -> Row:
    timing, steps = measured[name], case.new_tokens
    ms = Interval(*(us / steps / 1e3 for us in (timing.median_us, timing.low_us, timing.high_us)))
    speedup = None if name == "reference" else _ratio(measured, "reference", name)
    agrees = difference <= AGREEMENT[asked.dtype]
    return Row(case.phase, case.tokens, case.context, asked.batch, name, ms, speedup, first_ms, difference, agrees, timing.noisy)


def _ratio(measured: Measured, a: str, b: str) -> Interval:
    found = measured.ratio(a, b)
    if found is None:
        raise MeasurementFailed(f"{a} or {b} took no time that the clock can tell.", do="Profile a larger preset or longer prompts.")
    return found


# Amdahl ------------------------------------------------------------------------------------------------


def _law(case: Case, measured: Measured, shares: tuple[OpShare, ...]) -> AmdahlRow:
    observed = _ratio(measured, "reference", "swapped")
    predicted = median_interval([[gain] for gain in _predictions(measured, shares)])
    share = min(sum(op.share.median for op in shares), 1.0)
    text = sentence(case.label, shares, predicted, observed)
    return AmdahlRow(case.phase, case.tokens, case.context, shares, share, predicted, observed, text)


def _predictions(measured: Measured, shares: tuple[OpShare, ...]) -> list[float]:
    """Amdahl's prediction from each batch alone, so that its interval carries the spread of shares and speed-ups together."""

    def middle(name: str, batch: int) -> float:
        return statistics.median(measured.samples[name][batch])

    ops = [op.op for op in shares]
    predictions = []
    for batch in range(len(measured.samples["reference"])):
        before = [middle(_inside("reference", op), batch) for op in ops]
        after = [middle(_inside("swapped", op), batch) for op in ops]
        parts = amdahl.shares(before, middle("reference", batch))
        predictions.append(amdahl.gain_of_several((part, b / a) for part, b, a in zip(parts, before, after, strict=True) if a and b))
    return predictions


def _shares(measured: Measured, counted: Counted, steps: int) -> tuple[OpShare, ...]:
    shares = []
    for op, workloads in counted.items():
        contract = registry.current().op(op)
        selections = tuple(dispatch.select(contract, workload) for workload in workloads)
        before, after = _inside("reference", op), _inside("swapped", op)
        share, left = measured.ratio(before, "reference"), measured.ratio(after, "swapped")
        speedup = measured.ratio(before, after)
        if share and left and speedup:  # else its time is below the clock's resolution: no share to speak of
            shares.append(OpShare(op, sum(workloads.values()) // steps, share, speedup, left, selections))
    return tuple(shares)
