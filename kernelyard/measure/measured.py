"""What a measurement gives: samples by candidate and batch, and the times and ratios that follow from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kernelyard.errors import UnknownName
from kernelyard.measure.clocks import Mode, Stopwatch
from kernelyard.measure.stats import Batches, Interval, median_interval, ratio_interval
from kernelyard.registry.spec import Timing

PROTOCOL = "2"
"""Version of the protocol; stored with each measurement, and measurements of different versions are never compared."""

WIDE = 0.10
BELOW_RESOLUTION = "below the clock's resolution"


@dataclass(frozen=True)
class Measured:
    """The samples of one interleaved measurement.

    samples[name][batch] are microseconds of one call; calls[name] is how many calls one sample timed. `noise` is
    empty or says what disturbed the device. `states` has the device's state at the start and the end.
    """

    mode: Mode
    samples: Mapping[str, Batches]
    calls: Mapping[str, int]
    watches: Mapping[str, Stopwatch]
    seed: int = 0
    noise: str = ""
    unstable: frozenset[str] = frozenset()
    states: tuple[Any, ...] = field(default=(), repr=False)

    def __getitem__(self, name: str) -> Timing:
        return self.timing(name)

    @property
    def names(self) -> tuple[str, ...]:
        """The candidates."""
        return tuple(self.samples)

    def interval(self, name: str) -> Interval:
        """Median and 95% interval, microseconds of one call."""
        return median_interval(self._batches(name))

    def timing(self, name: str) -> Timing:
        """The time of one call, with what speaks against leaning on it."""
        interval, batches = self.interval(name), self._batches(name)
        return Timing(
            interval.median,
            interval.low,
            interval.high,
            mode=self.mode,
            clock=self.watches[name].clock,
            batches=len(batches),
            calls=self.calls[name] * sum(map(len, batches)),
            noisy=self._doubts(name, interval),
        )

    def below_resolution(self, name: str) -> bool:
        """Whether the candidate's time could not be told from nothing; such a time is no win."""
        return self.interval(name).median == 0.0

    def ratio(self, a: str, b: str) -> Interval | None:
        """The time of a over the time of b, paired by batch; below 1.0, a is faster. None is 'n/a'.

        There is no ratio where a time is below the clock's resolution, or where two clocks were used.
        The speed-up of a kernel over eager is `ratio("torch.eager", kernel)`.
        """
        tops, bottoms = self._batches(a), self._batches(b)
        if self.watches[a].clock != self.watches[b].clock:
            return None
        return ratio_interval(tops, bottoms)

    def notes(self, name: str) -> str:
        """Caches, allocation, clock: what a reader of the figure must know."""
        watch = self.watches[name]
        return "; ".join(part for part in (watch.cache, watch.note) if part)

    def _batches(self, name: str) -> Batches:
        if name not in self.samples:
            raise UnknownName("measured candidate", name, self.samples)
        return self.samples[name]

    def _doubts(self, name: str, interval: Interval) -> str:
        doubts = [BELOW_RESOLUTION] if interval.median == 0.0 else []
        if interval.spread > WIDE:
            doubts.append(f"the 95% interval is {interval.spread:.0%} of the median wide")
        if name in self.unstable:
            doubts.append("still changing at the end of the warm-up")
        return "; ".join([*doubts, self.noise] if self.noise else doubts)
