"""What happens at the ops inside a model: how long they take there, and which workloads they are asked for."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch

from kernelyard.decoder.cache import KVCache
from kernelyard.decoder.model import Decoder
from kernelyard.decoder.ops import NAMES, OpTable
from kernelyard.decoder.presets import Lengths, Preset
from kernelyard.registry import registry
from kernelyard.registry.spec import Workload

Function = Callable[..., Any]


def event() -> torch.cuda.Event:
    """A CUDA event that can be read."""
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


class HostTap:
    """Times one op by the monotonic clock around each of its calls, where it stands in the model: caches, allocator and
    neighbours are those of the real run, and dispatch is counted, since the model pays it. For a CPU, where a call
    has finished when it returns."""

    def __init__(self, op: str) -> None:
        self.op, self.calls, self._ns = op, 0, 0

    def __call__(self, name: str, function: Function) -> Function:
        """For `OpTable.tapped`."""
        if name != self.op:
            return function
        clock = time.perf_counter_ns

        def timed(*args: Any) -> Any:
            start = clock()
            out = function(*args)
            self._ns += clock() - start
            self.calls += 1
            return out

        return timed

    def take_us(self) -> float:
        """Microseconds since the last take."""
        taken, self._ns = self._ns / 1e3, 0
        return taken


class EventTap:
    """The same by a pair of CUDA events around each call, on the GPU's own time line. Where the GPU is busy that is the
    kernel; where it waits for the host, it is the time the host took to bring the op: either way what the model waits."""

    def __init__(self, op: str) -> None:
        self.op, self.calls = op, 0
        self._pairs: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []

    def __call__(self, name: str, function: Function) -> Function:
        """For `OpTable.tapped`."""
        if name != self.op:
            return function

        def timed(*args: Any) -> Any:
            start, end = event(), event()
            start.record()
            out = function(*args)
            end.record()
            self._pairs.append((start, end))
            self.calls += 1
            return out

        return timed

    def take_us(self) -> float:
        """Microseconds since the last take; waits for the device."""
        torch.cuda.synchronize()
        taken = float(sum(start.elapsed_time(end) for start, end in self._pairs)) * 1e3
        self._pairs.clear()
        return taken


Tap = HostTap | EventTap


def tap(op: str, device_type: str) -> Tap:
    """A tap on one op for a device type."""
    return EventTap(op) if device_type == "cuda" else HostTap(op)


def empty_cost_us(device_type: str) -> float:
    """What a tap around nothing reads, per call: the median of 21 runs of 100; taken off every reading."""
    probe = tap("nothing", device_type)
    function = probe("nothing", lambda: None)
    readings = []
    for _ in range(21):
        for _ in range(100):
            function()
        readings.append(probe.take_us() / 100)
    return sorted(readings)[10]


class Calls:
    """Counts the workloads that each op is called for."""

    def __init__(self, device_type: str) -> None:
        self.device_type = device_type
        self.by_op: dict[str, Counter[Workload]] = {name: Counter() for name in NAMES}

    def __call__(self, name: str, function: Function) -> Function:
        """For `OpTable.tapped`."""
        op = registry.current().op(name)

        def counted(*args: Any) -> Any:
            workload = op.workload_of(op.bind(args, {}))
            self.by_op[name][replace(workload, device=self.device_type)] += 1
            return function(*args)

        return counted


SHAPES_ONLY = OpTable(
    rmsnorm=lambda x, w, eps: torch.empty_like(x),
    softmax=torch.empty_like,
    vector_add=lambda a, b: torch.empty_like(a),
)
"""Ops that allocate and compute nothing, for meta tensors."""


def workloads(preset: Preset, device_type: str, dtype: str, lengths: Lengths, batch: int = 1) -> Mapping[str, tuple[Workload, ...]]:
    """The workloads that a profile of these lengths asks each op for, by op name: what to tune so that the model gains.

    Found by running the model on meta tensors; nothing is allocated.
    """
    calls = Calls(device_type)
    model = Decoder(preset, device="meta", dtype=getattr(torch, dtype))
    for tokens in lengths.prompts:
        _shape_run(model, calls, batch, tokens, 0, tokens)
    for context in lengths.contexts:
        _shape_run(model, calls, batch, 1, context, context + lengths.new_tokens)
    return {name: tuple(counted) for name, counted in calls.by_op.items() if counted}


def _shape_run(model: Decoder, tap: Calls, batch: int, tokens: int, context: int, capacity: int) -> None:
    cache = KVCache(model.preset, capacity, batch=batch, device="meta", dtype=model.norm.dtype)
    cache.rewind(context)
    model(torch.empty(batch, tokens, dtype=torch.int64, device="meta"), cache, SHAPES_ONLY.tapped(tap))
