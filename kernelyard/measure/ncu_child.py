"""The process under Nsight Compute: builds one kernel, makes its arguments, warms up, and launches it between two marks.

ncu profiles what lies between the marks alone (--profile-from-start off), so that neither making inputs nor warming up counts, nor,
where each launch is to find the L2 full of other data, the flush before it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from itertools import islice
from typing import Any

from kernelyard.errors import KernelyardError
from kernelyard.measure.arguments import Pair, rotation
from kernelyard.registry import registry
from kernelyard.registry.backend import Executable
from kernelyard.registry.lazy import torch
from kernelyard.registry.matrix import point_from

WARM_UP = 3

Mark = Callable[[], Any]


def run(payload: Mapping[str, Any], start: Mark, stop: Mark, wait: Mark, flush: Mark | None = None) -> None:
    """{op, kernel, config, point: [dims, dtype, layout, statics], device, launches}; `wait` returns when the device is idle.

    With `flush` each launch has marks of its own, and a flush before them.
    """
    everything = registry.current()
    op, kernel = everything.op(payload["op"]), everything.kernel(payload["op"], payload["kernel"])
    workload = op.workload(point_from(payload["point"]), payload["device"])
    launch = _launch(everything.build(kernel, workload, payload["config"]))
    sets = rotation(op, workload)
    for pair in islice(sets.turn, WARM_UP):
        launch(pair)
    pairs = list(islice(sets.turn, payload["launches"]))
    for group in [[pair] for pair in pairs] if flush else [pairs]:
        if flush:
            flush()
        wait()
        start()
        for pair in group:
            launch(pair)
        wait()
        stop()


def _launch(executable: Executable) -> Callable[[Pair], None]:
    into, call, wait = executable.into, executable.call, executable.wait
    if into is not None:
        return lambda pair: into(pair[0], *pair[1])

    def called(pair: Pair) -> None:
        result = call(*pair[1])
        if wait is not None:
            wait(result)

    return called


def main(payload: str) -> int:
    """Runs the payload on CUDA; what can't be done is said on stderr, with exit code 1."""
    from kernelyard.measure.cuda import flusher

    try:
        torch.zeros(1, device="cuda")  # says in one sentence why there is no GPU, before a plugin says so in its own words
        asked = json.loads(payload)
        flush = flusher() if asked["flush"] else None
        run(asked, torch.cuda.profiler.start, torch.cuda.profiler.stop, torch.cuda.synchronize, flush)
    except (KernelyardError, RuntimeError, AssertionError) as error:  # torch without CUDA asserts, without a GPU it raises RuntimeError
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
