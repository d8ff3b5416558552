"""What a captured matrix is tuned in: the ops and workloads that took most of the model's time first.

Time is count x the device time of the stored choice, stale or not, where every point has one; else count x the bytes that the op's cost
model says it moves, for all of them: microseconds and bytes do not compare.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kernelyard.registry.machine import identity
from kernelyard.registry.matrix import Matrix
from kernelyard.registry.registry import Registry
from kernelyard.registry.spec import Workload

Weight = Callable[[Workload], float]


def ordered(everything: Registry, matrices: Sequence[Matrix], device: str) -> tuple[list[tuple[Matrix, list[Workload]]], str]:
    """The matrices and their workloads, as they are to be tuned; and by what they were ordered, empty where no calls were counted."""
    as_given = [(matrix, _workloads(everything, matrix, device)) for matrix in matrices]
    if not all(matrix.counts for matrix in matrices):
        return as_given, ""
    times = {workload: stored_us(workload) for _, workloads in as_given for workload in workloads}
    known = {workload: us for workload, us in times.items() if us is not None}
    timed = len(known) == len(times)
    weight: Weight = known.__getitem__ if timed else lambda workload: everything.op(workload.op).cost(workload).bytes
    ranked = sorted((_ranked(matrix, workloads, weight) for matrix, workloads in as_given), key=lambda row: -row[0])
    unit = "count x stored time" if timed else f"count x bytes of the cost model ({len(known)} of {len(times)} points have a stored time)"
    return [(matrix, workloads) for _, matrix, workloads in ranked], unit


def stored_us(workload: Workload) -> float | None:
    """Device time of the choice stored for a workload, whether it still holds or not."""
    from kernelyard.store.choices import entry

    found = entry(workload.op, workload.key(), identity(workload.device).key())
    times = found.evidence.get("device_time_us") if found is not None else None
    return float(times["median"]) if times else None


def _ranked(matrix: Matrix, workloads: Sequence[Workload], weight: Weight) -> tuple[float, Matrix, list[Workload]]:
    """The weight of all, the matrix as it is, whose hash tells the order of its file, and its workloads by weight."""
    pairs = [(count * weight(workload), workload) for count, workload in zip(matrix.counts, workloads, strict=True)]
    pairs.sort(key=lambda pair: -pair[0])
    return sum(one for one, _ in pairs), matrix, [workload for _, workload in pairs]


def _workloads(everything: Registry, matrix: Matrix, device: str) -> list[Workload]:
    op = everything.op(matrix.op)
    return [op.workload(point, device) for point in matrix.points]
