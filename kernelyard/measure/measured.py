"""What a measurement gives: samples by candidate and batch, and the times and ratios that follow from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kernelyard.errors import UnknownName
from kernelyard.measure import conditions
from kernelyard.measure.clocks import Mode, Stopwatch
from kernelyard.measure.energy import Energy
from kernelyard.measure.state import DeviceState
from kernelyard.measure.stats import Batches, Interval, median_interval, ratio_interval
from kernelyard.registry.spec import Timing

PROTOCOL = "3"
"""Version of the protocol; stored with each measurement, and measurements of different versions are never compared."""

WIDE = 0.10
COARSE = 0.02
BELOW_RESOLUTION = "below the clock's resolution"


@dataclass(frozen=True)
class Measured:
    """The samples of one interleaved measurement.

    samples[name][batch] are microseconds of one call, sample i of a batch being of round i; calls[name] is how many calls
    one sample timed. `noise` is empty or says what disturbed the device, `unsettled` what still moved when timing began.
    `states` has the device's state before and after the measurement, `batch_states` at the start and end of each batch where
    that is cheap (nvidia-smi is not). `energy` is there where it was asked for.
    """

    mode: Mode
    samples: Mapping[str, Batches]
    calls: Mapping[str, int]
    watches: Mapping[str, Stopwatch]
    noise: str = ""
    unstable: frozenset[str] = frozenset()
    unsettled: str = ""
    batch_states: tuple[DeviceState, ...] = field(default=(), repr=False)
    states: tuple[DeviceState, ...] = field(default=(), repr=False)
    energy: Energy | None = None

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
        """The time of a over the time of b, paired by round; below 1.0, a is faster. None is 'n/a'.

        There is no ratio where a time is below the clock's resolution, or where two clocks were used.
        The speed-up of a kernel over eager is `ratio("torch.eager", kernel)`.
        """
        tops, bottoms = self._batches(a), self._batches(b)
        if self.watches[a].clock != self.watches[b].clock:
            return None
        return ratio_interval(tops, bottoms)

    def notes(self, name: str) -> str:
        """Caches, allocation, clock, the device's conditions: what a reader of the figure must know."""
        watch = self.watches[name]
        unsettled = f"when timing began, {self.unsettled}" if self.unsettled else ""
        return "; ".join(part for part in (watch.cache, watch.note, unsettled, self.conditions) if part)

    @property
    def conditions(self) -> str:
        """The device's states while batches were taken, as ranges: 'SM clock 1980 MHz, memory 3201 MHz, 41-44 C, 310-640 W'."""
        return conditions.summary(self.batch_states or self.states)

    def _batches(self, name: str) -> Batches:
        if name not in self.samples:
            raise UnknownName("measured candidate", name, self.samples)
        return self.samples[name]

    def _step_share(self, name: str, interval: Interval) -> float:
        """One step of the clock as a share of a sample; 0 where there is no time to speak of."""
        return self.watches[name].resolution_us / (self.calls[name] * interval.median) if interval.median else 0.0

    def _doubts(self, name: str, interval: Interval) -> str:
        doubts = [BELOW_RESOLUTION] if interval.median == 0.0 else []
        if interval.spread > WIDE:
            doubts.append(f"the 95% interval is {interval.spread:.0%} of the median wide")
        if name in self.unstable:
            doubts.append("still changing at the end of the warm-up")
        if (step := self._step_share(name, interval)) > COARSE:
            doubts.append(f"the clock steps by {self.watches[name].resolution_us:.3g} us, {step:.0%} of a sample")
        return "; ".join([*doubts, self.noise] if self.noise else doubts)
