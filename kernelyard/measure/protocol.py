"""The timing protocol. `measure` is the one function whose times may be quoted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from kernelyard.errors import UsageError
from kernelyard.measure import device
from kernelyard.measure.arguments import Rotation, rotation
from kernelyard.measure.clocks import Mode, Stopwatch, first_call_us, stopwatches
from kernelyard.measure.energy import measure_energy
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
    energy: bool = False,
    waiting: Callable[[str], None] | None = None,
) -> Measured:
    """Time candidates against each other on one device, alone on it.

    1. The device's lock is taken, so that no other process or thread times on it; `waiting` gets one message if another holds it,
       and one if the device is busy with work that no lock keeps away.
    2. Candidates of one workload share their arguments: several sets, drawn in turn, larger together than the cache
       where that is feasible (`Measured.notes` says what was). Nobody meets data that its own last call left behind.
    3. Each candidate warms up for a time, not a count, until its readings agree; on a GPU all then go on until clock and
       temperature stand still, a second at most (`Measured.unsettled` says what did not). First calls and builds are in no
       sample: `first_call_us` times those.
    4. Calls per sample are calibrated so that a sample lasts long against the clock's step, which is measured; the cost of
       the loop around them, measured on an empty one, is taken off.
    5. At least three batches. A batch is several rounds; a round times every candidate once, in a fresh random (seeded)
       order, so that drift and neighbours meet all alike. Before each sample a few calls go untimed; on a GPU at its power cap
       a tenth of a second of them, so that each candidate has the clock that its own power leaves it, not its neighbour's.
    6. The device's state is read around each batch. One that something disturbed (other load, throttling) is taken again,
       twice at most in all; after that it stays and the result says that it is noisy, as it does where a GPU's clock moved.
    7. Batches are added until every interval is within plus or minus `precision` of its median, or `budget_s` is spent,
       or there are `most_batches`.
    8. The time is the median over batches of each batch's median, a ratio that of the ratios inside each round; both have a
       95% interval by the spread of batches (see `stats`). A ratio whose interval contains 1.0 is no difference.
    9. With `energy`, each candidate runs once more by itself, for half a second, beside the device's counter of joules.

    mode 'device': arguments resident, outputs allocated beforehand. On a CPU the monotonic clock runs around calls of
    `into`; on a GPU a CUDA graph is replayed, or events are recorded where a candidate can't be captured. mode 'call':
    the host's time for a call from Python that allocates its outputs; on a GPU calls follow each other unsynchronised.
    Where a candidate brings its own `wait` (JAX), device time of all of them is the host's until results are there.

    Raises MeasurementFailed where a clock gives no time or a candidate fails; the message names it.
    """
    names = [candidate.name for candidate in candidates]
    if not names or len(set(names)) != len(names):
        raise UsageError(f"candidates to measure must have names of their own, not {names}.")
    where = identity(device_type)
    plan = Plan(batches, most_batches, budget_s, precision, warm_up_s=WARM_UP_S[device_type], seed=seed)
    with device.lock(where, waiting):
        before = device.state(where)
        if before.noisy and waiting is not None:
            waiting(f"{where.name} is not quiet: {before.noisy}; timing goes on and says what it met")
        measured = interleave(_stopwatches(candidates, device_type, mode), plan, mode, device.guard(where))
        states = before, device.state(where)
        joules = measure_energy(measured.watches, measured.calls, where) if energy else None
        return replace(measured, states=states, energy=joules)


def _stopwatches(candidates: Sequence[Candidate], device_type: str, mode: Mode) -> dict[str, Stopwatch]:
    rotations: dict[str, Rotation] = {}
    bound = {}
    for candidate in candidates:
        key = candidate.name if candidate.arguments else candidate.workload.key()
        if key not in rotations:
            rotations[key] = candidate.arguments() if candidate.arguments else rotation(candidate.op, candidate.workload)
        bound[candidate.name] = (candidate.executable, rotations[key])
    return stopwatches(bound, device_type, mode)
