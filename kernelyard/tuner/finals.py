"""Finals: the best few, every kernel's best and the references, timed against each other once more; and who wins.

Trials are short and one after another, so a trial's best may be luck. Finals decide on interleaved batches, and a
difference that the 95% interval of the ratio does not show is none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from kernelyard.measure.stats import Interval, ratio_interval
from kernelyard.registry.op import Op
from kernelyard.registry.spec import Config, Status, Timing, config_key
from kernelyard.tuner.bench import Bench, Finished, Item, Result, Times
from kernelyard.tuner.limits import FINALISTS, Limits, Options
from kernelyard.tuner.plan import Plan

NOT_CHECKED = Result(Status.OK, "not checked: it is there to compare with")


@dataclass(frozen=True)
class Finalist:
    """A kernel and config in finals. `reference`: timed to compare with, and chosen if it wins (unless not `choosable`)."""

    item: Item
    reference: bool
    choosable: bool = True
    default: bool = False
    order: tuple[int, ...] = ()
    """How simple: less is simpler. References first, then by the kernel's rank and the places of the config's values."""

    @property
    def name(self) -> str:
        """The kernel's name."""
        return self.item.kernel


@dataclass(frozen=True)
class Outcome:
    """How finals went. `results` by item id say what became of each; `device` and `call` are the times of those that stayed."""

    finalists: tuple[Finalist, ...]
    results: Mapping[str, Result]
    device: Times | None
    call: Times | None
    winner: Finalist | None
    reason: str

    def timing(self, finalist: Finalist) -> Timing | None:
        """Its device time; None where it has none, or one that can't be."""
        name = finalist.item.id
        return self.device.timings.get(name) if self.device is not None and name not in self.device.impossible else None

    def ratio(self, a: Finalist, b: Finalist) -> Interval | None:
        """The device time of a over that of b."""
        return _ratio(self.device, a, b) if self.device is not None else None


def lineup(plan: Plan, op: Op, finished: Mapping[str, Sequence[Finished]]) -> tuple[Finalist, ...]:
    """Who takes part: references, each kernel's best, the best few overall, and the default of the kernel that leads."""
    right = {kernel: sorted(filter(_timed, trials), key=_median) for kernel, trials in finished.items()}
    overall = sorted(((kernel, one) for kernel, trials in right.items() for one in trials), key=lambda pair: _median(pair[1]))
    chosen = overall[:FINALISTS] + [(kernel, trials[0]) for kernel, trials in right.items() if trials]
    entries = {Item(kernel, one.config, plan.workload).id: (kernel, one.config) for kernel, one in chosen}
    leading = [search.kernel for search in plan.searches if right.get(search.kernel.name)]
    defaults = {kernel.name: kernel.space.default_for(plan.workload) for kernel in leading}
    if overall:
        leader = overall[0][0]
        if any(config_key(one.config) == config_key(defaults[leader]) for one in right[leader]):
            entries[Item(leader, defaults[leader], plan.workload).id] = (leader, defaults[leader])
    references = [_reference(plan, place, kernel.name, kernel.name in plan.unchoosable) for place, kernel in enumerate(plan.references)]
    return (*references, *(_tuned(plan, kernel, config, defaults[kernel]) for kernel, config in entries.values()))


def _reference(plan: Plan, place: int, name: str, unchoosable: bool) -> Finalist:
    kernel = plan.references[place]
    config = kernel.space.default_for(plan.workload)
    return Finalist(Item(name, config, plan.workload, patient=True), True, not unchoosable, order=(0, place))


def _tuned(plan: Plan, name: str, config: Config, default: Config) -> Finalist:
    ranks = {search.kernel.name: rank for rank, search in enumerate(plan.searches)}
    space = plan.searches[ranks[name]].kernel.space
    places = [list(map(repr, parameter.values)).index(repr(config[parameter.name])) for parameter in space.parameters]
    same = config_key(config) == config_key(default)
    return Finalist(Item(name, config, plan.workload), False, True, same, (1, sum(places), ranks[name], *places))


def _timed(one: Finished) -> bool:
    return one.result.status is Status.OK and one.result.timing is not None and one.result.timing.median_us > 0


def _median(one: Finished) -> float:
    assert one.result.timing is not None
    return one.result.timing.median_us


def play(bench: Bench, op: Op, finalists: Sequence[Finalist], limits: Limits) -> Outcome:
    """Prepare every finalist, time those that are right, decide. Where only noise decides, time once more for longer."""
    results = {f.item.id: bench.prepare(f.item) if f.choosable else NOT_CHECKED for f in finalists}
    device = interleaved(bench, finalists, results, limits.finals, limits)
    outcome = _decide(op, finalists, results, device)
    if device is not None and _is_close(op, outcome):
        longer = interleaved(bench, finalists, results, limits.again, limits)
        outcome = _decide(op, finalists, results, longer or device)
    call = interleaved(bench, finalists, results, limits.call, limits, mode="call")
    return replace(outcome, call=call)


def interleaved(
    bench: Bench, finalists: Sequence[Finalist], results: dict[str, Result], options: Options, limits: Limits, mode: str = "device"
) -> Times | None:
    """All that are right, interleaved. If that fails, each alone first, to find and drop those that break it."""
    for attempt in range(2):
        items = [f.item for f in finalists if results[f.item.id].status is Status.OK]
        if not items:
            return None
        times = bench.time(items, options, mode, ceiling=mode == "device")
        if isinstance(times, Times):
            results.update({name: replace(results[name], status=Status.WRONG, reason=reason) for name, reason in times.impossible.items()})
            return times
        for item in items if attempt == 0 else ():
            alone = bench.time([item], limits.trial, mode)
            if isinstance(alone, Result):
                results[item.id] = replace(alone, reason=f"in finals: {alone.reason}")
    return None


def _decide(op: Op, finalists: Sequence[Finalist], results: Mapping[str, Result], device: Times | None) -> Outcome:
    """The fastest, unless others can't be told from it: then the reference, else the default, else the simplest of them.

    One that is kept for a tie must not be slower, in the median, than any reference: that would look like a loss.
    """
    if device is None:
        return Outcome(tuple(finalists), dict(results), None, None, None, "nothing could be timed")
    medians = {name: timing.median_us for name, timing in device.timings.items() if timing.median_us > 0}
    able = [f for f in finalists if f.choosable and f.item.id in medians and results[f.item.id].status is Status.OK]
    if not able:
        return Outcome(tuple(finalists), dict(results), device, None, None, "every time is below the clock's resolution")
    fastest = min(able, key=lambda f: medians[f.item.id])
    bar = min((medians[f.item.id] for f in able if f.reference), default=float("inf"))
    tied = [f for f in able if _tied(device, f, fastest) and (f.reference or medians[f.item.id] <= bar)]
    kept = min(tied, key=lambda f: (f.name != op.fallback, not (f.default and f.name == fastest.name), f.reference, f.order))
    return Outcome(tuple(finalists), dict(results), device, None, kept, _reason(op, kept, fastest))


def _tied(device: Times, one: Finalist, fastest: Finalist) -> bool:
    ratio = _ratio(device, one, fastest)
    return one is fastest or (ratio is not None and ratio.contains(1.0))


def _reason(op: Op, kept: Finalist, fastest: Finalist) -> str:
    if kept is fastest:
        return "the op's reference is the fastest" if kept.name == op.fallback else "fastest in finals"
    over = f"no difference from {fastest.name if fastest.name != kept.name else 'its fastest config'} was shown"
    if kept.name == op.fallback:
        return f"{over}: the op's reference is kept"
    return f"{over}: the default config is kept" if kept.default else f"{over}: the simpler one is kept"


def _is_close(op: Op, outcome: Outcome) -> bool:
    """Whether the reference was kept for a tie although something was 3% faster in the median: noise hides a difference, or makes one."""
    kept = outcome.winner
    if kept is None or kept.name != op.fallback or outcome.device is None:
        return False
    timed = [timing for f in outcome.finalists if f.choosable and (timing := outcome.timing(f)) is not None]
    return min(timing.median_us for timing in timed) < 0.97 * outcome.device.timings[kept.item.id].median_us


def _ratio(times: Times, a: Finalist, b: Finalist) -> Interval | None:
    one, other = a.item.id, b.item.id
    if one not in times.samples or other not in times.samples or times.timings[one].clock != times.timings[other].clock:
        return None
    return ratio_interval(times.samples[one], times.samples[other])
