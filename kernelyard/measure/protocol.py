"""The timing protocol. `measure` is the one function whose times may be quoted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from kernelyard.errors import UsageError
from kernelyard.measure import device
from kernelyard.measure.arguments import Rotation, rotation
from kernelyard.measure.clocks import Mode, Stopwatch, first_call_us, stopwatches
from kernelyard.measure.interleave import Plan, interleave
from kernelyard.measure.measured import PROTOCOL, Measured
from kernelyard.measure.stats import Interval
from kernelyard.registry.backend import Executable
from kernelyard.registry.machine import identity
from kernelyard.registry.op import Op
from kernelyard.registry.spec import Timing, Workload

__all__ = ["PROTOCOL", "Candidate", "Interval", "Measured", "Timing", "first_call_us", "measure"]

WARM_UP_S = {"cpu": 0.05, "cuda": 0.2}
"""At least, for each candidate; a GPU's clock and its kernels' pipelines need longer."""


@dataclass(frozen=True)
class Candidate:
    """Something to time: a built kernel under a name of its own, on a workload of an op.

    `arguments` makes the sets to call it with, where those are not the op's own inputs (the copy that is a ceiling).
    """

    name: str
    op: Op
    workload: Workload
    executable: Executable
    arguments: Callable[[], Rotation] | None = None


def measure(
    candidates: Sequence[Candidate],
    *,
    device_type: str,
    mode: Mode = "device",
    batches: int = 3,
    most_batches: int = 12,
    budget_s: float = 3.0,
    precision: float = 0.01,
    seed: int = 0,
    waiting: Callable[[str], None] | None = None,
) -> Measured:
    """Time candidates against each other on one device, alone on it.

    1. The device's lock is taken, so that no other process times on it; `waiting` gets one message if another holds it.
    2. Candidates of one workload share their arguments: several sets, drawn in turn, larger together than the cache
       where that is feasible (`Measured.notes` says what was). Nobody meets data that its own last call left behind.
    3. Each candidate warms up for a time, not a count, until its readings agree. First calls and builds are in no
       sample: `first_call_us` times those.
    4. Calls per sample are calibrated so that a sample lasts long against the clock's resolution; the cost of the loop
       around them, measured on an empty one, is taken off.
    5. At least three batches. A batch is several rounds; a round times every candidate once, in a fresh random (seeded)
       order, so that drift and neighbours meet all alike. Before each sample a few calls go untimed.
    6. A batch that something disturbed (other load, throttling) is taken again, twice at most in all; after that it
       stays and the result says that it is noisy.
    7. Batches are added until every interval is within plus or minus `precision` of its median, or `budget_s` is spent,
       or there are `most_batches`.
    8. The time is the median over batches of each batch's median, its interval a 95% bootstrap over batches; a ratio is
       paired by batch. A ratio whose interval contains 1.0 is no difference.

    mode 'device': arguments resident, outputs allocated beforehand. On a CPU the monotonic clock runs around calls of
    `into`; on a GPU a CUDA graph is replayed, or events are recorded where a candidate can't be captured. mode 'call':
    the host's time for a call from Python that allocates its outputs; on a GPU calls follow each other unsynchronised.

    Raises MeasurementFailed where a clock gives no time or a candidate fails; the message names it.
    """
    names = [candidate.name for candidate in candidates]
    if not names or len(set(names)) != len(names):
        raise UsageError(f"candidates to measure must have names of their own, not {names}.")
    where = identity(device_type)
    plan = Plan(batches, most_batches, budget_s, precision, warm_up_s=WARM_UP_S[device_type], seed=seed)
    with device.lock(where, waiting):
        before = device.state(where)
        measured = interleave(_stopwatches(candidates, device_type, mode), plan, mode, device.guard(where))
        return replace(measured, states=(before, device.state(where)))


def _stopwatches(candidates: Sequence[Candidate], device_type: str, mode: Mode) -> dict[str, Stopwatch]:
    rotations: dict[str, Rotation] = {}
    bound = {}
    for candidate in candidates:
        key = candidate.name if candidate.arguments else candidate.workload.key()
        if key not in rotations:
            rotations[key] = candidate.arguments() if candidate.arguments else rotation(candidate.op, candidate.workload)
        bound[candidate.name] = (candidate.executable, rotations[key])
    return stopwatches(bound, device_type, mode)
