"""CUDA clocks: replay of a graph of calls, events around single calls, and the host's time for a call.

Before each timed stretch the stream is kept busy for a moment, so that the host has queued everything by the time the
first event is recorded: what lies between two events is then device work alone. That holds for kernels that allocate
their outputs too: torch's allocator works on the host, and a graph has its memory once and for all.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from functools import lru_cache, partial
from itertools import islice, pairwise
from typing import Any

import torch

from kernelyard.errors import MeasurementFailed
from kernelyard.measure import monotonic
from kernelyard.measure.arguments import MB, Pair, Rotation
from kernelyard.measure.clocks import Stopwatch
from kernelyard.registry.backend import Executable

GRAPH_CALLS = 200  # long against the gap between an event and the first kernel of a graph
GRAPH_US = 20_000.0
EVENT_CALLS = 32
HOST_CALLS = 100  # far from the 1024 launches after which the driver makes the host wait
EVENT_STEP_US = 0.5  # what cudaEventElapsedTime's documentation promises; used where none was seen
HEAD_START_CYCLES = 400_000  # some 200 us: more than it takes to launch a graph or an eager op

cuda: Any = torch.cuda  # parts of it have no types
Run = Callable[[Pair], Any]


class NotCapturable(Exception):
    """A candidate can't be recorded in a CUDA graph; the message has the reason."""


def graph_time(executable: Executable, rotation: Rotation) -> Stopwatch:
    """Replay of one graph of up to 200 calls that pass through all sets; raises NotCapturable."""
    run, kept = _run(executable, len(rotation.sets))
    calls = _graph_calls(run, rotation)
    graph = _capture(run, rotation, calls)
    _check_replay(graph, rotation, kept if executable.into is None else None)
    before, held = flusher(), rotation.sets  # a graph knows addresses alone: the sets must live as long as it does

    def elapsed_us(count: int) -> float:
        assert held
        return sum(_between_events(graph.replay, before) for _ in range(count // calls))

    def work(count: int) -> None:
        for _ in range(count // calls):
            graph.replay()
        torch.cuda.synchronize()

    return Stopwatch(
        "graph", elapsed_us, grain=calls, most_calls=calls, resolution_us=event_step_us(), lead_in=0.0, cache=rotation.cache, work=work
    )


def event_time(executable: Executable, rotation: Rotation, reason: str = "") -> Stopwatch:
    """Events around each single call, L2 flushed before it; includes the few microseconds that two events are apart anyway."""
    run, _ = _run(executable, len(rotation.sets))
    flush = flusher()
    floor = min(_between_events(lambda: None, flush) for _ in range(5))

    def elapsed_us(count: int) -> float:
        return sum(_between_events(lambda pair=pair: run(pair), flush) for pair in islice(rotation.turn, count))  # type: ignore[misc]

    def work(count: int) -> None:
        for pair in islice(rotation.turn, count):
            run(pair)
        torch.cuda.synchronize()

    notes = (reason, f"an empty pair of events reads {floor:.1f} us")
    return Stopwatch(
        "events", elapsed_us, most_calls=EVENT_CALLS, resolution_us=event_step_us(), lead_in=1 / EVENT_CALLS,
        cache=f"L2 flushed before every call; {rotation.cache}", note="; ".join(filter(None, notes)), work=work,
    )  # fmt: skip


def call_time(executable: Executable, rotation: Rotation) -> Stopwatch:
    """The host's time to issue a call from Python; calls follow each other and the device is waited for once, outside the time."""
    call, wait = executable.call, executable.wait or _nothing

    def elapsed_us(count: int) -> float:
        torch.cuda.synchronize()
        result = None
        start = time.perf_counter_ns()
        for _, args in islice(rotation.turn, count):
            result = call(*args)
        stop = time.perf_counter_ns()
        wait(result)
        torch.cuda.synchronize()
        return (stop - start) / 1e3

    return Stopwatch(
        "monotonic", elapsed_us, most_calls=HOST_CALLS, resolution_us=monotonic.clock().resolution_us, cache=rotation.cache,
        note="host time, device not waited for",
    )  # fmt: skip


def _run(executable: Executable, count: int) -> tuple[Run, deque[Any]]:
    """One call on a pair. Results that the kernel allocates are kept for a whole turn, so that they are as cold as rotated ones."""
    kept: deque[Any] = deque(maxlen=count)
    into, call = executable.into, executable.call
    if into is not None:
        return lambda pair: into(pair[0], *pair[1]), kept
    return lambda pair: kept.append(call(*pair[1])), kept


def _graph_calls(run: Run, rotation: Rotation) -> int:
    """200 calls, fewer where they would last over 20 ms, and whole turns of the sets."""
    for pair in islice(rotation.turn, 3):
        run(pair)
    once = min(_between_events(lambda: run(rotation.sets[0]), _nothing) for _ in range(3))
    calls = min(GRAPH_CALLS, max(int(GRAPH_US / max(once, 1.0)), 2))
    return max(calls // len(rotation.sets), 1) * len(rotation.sets)


def _capture(run: Run, rotation: Rotation, calls: int) -> torch.cuda.CUDAGraph:
    graph, stream = torch.cuda.CUDAGraph(), cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):  # warm this stream up: handles and workspaces may not be made while capturing
        for pair in islice(rotation.turn, 3):
            run(pair)
    torch.cuda.synchronize()
    try:
        with torch.cuda.graph(graph, stream=stream):
            for index in range(calls):
                run(rotation.sets[index % len(rotation.sets)])
    except Exception as error:  # whatever the candidate raises here, events can still time it
        torch.cuda.synchronize()
        raise NotCapturable(str(error).strip().split("\n")[0][:200]) from error
    torch.cuda.synchronize()
    return graph


def _check_replay(graph: torch.cuda.CUDAGraph, rotation: Rotation, kept: deque[Any] | None) -> None:
    """A replay must write every output: work that escaped the capture would make the graph look fast."""
    results = [pair[0] for pair in rotation.sets] if kept is None else list(kept)
    outputs = [tensor for result in results for tensor in (result if isinstance(result, tuple | list) else (result,))]
    checked = [tensor for tensor in outputs if tensor.is_floating_point() and tensor.numel()]
    for tensor in checked:
        tensor.fill_(float("nan"))
    graph.replay()
    torch.cuda.synchronize()
    if any(bool(tensor.isnan().all()) for tensor in checked):
        raise NotCapturable("a replay left outputs unwritten")


def _between_events(work: Callable[[], Any], flush: Callable[[], None]) -> float:
    """Microseconds of device time from before the work to after it."""
    start, stop = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
    flush()
    cuda._sleep(HEAD_START_CYCLES)
    start.record()
    work()
    stop.record()
    stop.synchronize()
    return float(start.elapsed_time(stop)) * 1e3


def flusher() -> Callable[[], None]:
    """Fills the L2 with other data, so that every timed stretch finds it alike, as a kernel between others in a model does.

    Reads three times the L2. A read and not a fill: a fill leaves dirty lines, whose write-back the kernel would pay for. Needed
    however large the sets are: a kernel that marks all its lines evict_first displaces nobody else's, and after one that left
    the L2 empty, or full of such lines, it would be up to 10% faster (H200).
    """
    size = 3 * _l2_bytes()
    try:
        buffer = torch.zeros(size // 4, device="cuda")
    except torch.OutOfMemoryError as error:
        asked = f"the buffer of {size / MB:.0f} MB that flushes L2 doesn't fit on the GPU."
        raise MeasurementFailed(asked, do="Free memory on it.") from error
    total = torch.zeros((), device="cuda")

    def flush() -> None:
        torch.sum(buffer, dim=0, out=total)

    return flush


def _l2_bytes() -> int:
    return int(torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size)


@lru_cache(maxsize=1)
def event_step_us() -> float:
    """The least by which two readings of events differ, to the nanosecond; measured once a process on waits of many lengths."""
    readings = sorted({round(_between_events(partial(cuda._sleep, 1000 + 37 * i), _nothing), 3) for i in range(32)})
    return min((round(b - a, 3) for a, b in pairwise(readings)), default=EVENT_STEP_US)


def synchronize() -> None:
    """Wait for all work of the GPU, in every stream of this process."""
    torch.cuda.synchronize()


def _nothing(*args: Any) -> None:
    return None
