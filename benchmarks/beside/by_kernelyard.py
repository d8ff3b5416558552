"""The whole space by kernelyard: builds ahead side by side, as `bench` does them, then the trial of `tune` for every config."""

from __future__ import annotations

import time

from beside.declared import KERNELS
from beside.found import Found, asked_for, space_of
from kernelyard.cli.output import say
from kernelyard.measure.measured import PROTOCOL
from kernelyard.registry.spec import Status
from kernelyard.tuner import ahead
from kernelyard.tuner.bench import Bench, Item
from kernelyard.tuner.limits import Limits
from kernelyard.verify.isolation import Worker


def main() -> None:
    """Build, check and time; write what was found."""
    asked, limits = asked_for(__doc__), Limits()
    workload, configs = space_of(asked.language, asked.shape)
    items = [Item(KERNELS[asked.language], config, workload) for config in configs]
    start = time.perf_counter()
    count = ahead.processes(len(items))
    ahead.build(items, limits, count, say)
    built = time.perf_counter()
    with Worker() as worker:
        bench = Bench(worker, limits)
        results = [bench.trial(item, limits.trial) for item in items]
    end = time.perf_counter()
    timed = [(result.timing.median_us, item) for item, result in zip(items, results, strict=True) if result.timing is not None]
    best = min(timed, key=lambda pair: pair[0], default=None)
    Found(
        "kernelyard", len(items), len(timed), len(items) - len(timed), end - start,
        dict(best[1].config) if best else None, best[0] if best else None,
        "every config, poisoned outputs and guard regions, on the device",
        f"{limits.trial['batches']} batches, {limits.trial['budget_s']} s in all, inputs rotated, the L2 of a GPU full of other data "
        f"(protocol {PROTOCOL}); the median",
        {"builds_ahead_s": built - start, "processes": count, "trials_s": end - built, "statuses": _counts([r.status for r in results]),
         "first_failure": next((f"{r.status}: {r.reason} {r.log}" for r in results if r.status is not Status.OK), "")},
    ).write(asked.into)  # fmt: skip


def _counts(statuses: list[Status]) -> dict[str, int]:
    return {str(status): statuses.count(status) for status in sorted(set(statuses))}


if __name__ == "__main__":
    main()
