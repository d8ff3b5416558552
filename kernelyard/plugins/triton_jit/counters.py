"""Zeros by which the programs of one launch count each other: who comes last merges, and leaves them as zeros.

Nobody may count by the zeros of somebody else who runs at the same time. Launches of one stream run one after the other (one that overlaps
waits before it counts), so a stream has its own, for all kernels. A captured call keeps its own for as long as the process lives: its graph
may be replayed on any stream, beside others. Zeroing them at each call would be a launch more, 1 to 2 us in a graph.

They are taken from a slab that is zeroed once and outside of graphs. 2^20 captured counters are 2000 graphs of 16 layers with 32 heads;
from there on a graph zeroes its own, which is right and slower.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

Into = Callable[..., None]
SLAB = 1 << 20
"""Counters of a GPU: 4 MiB."""
APART = 32
"""What the zeros of two owners start at multiples of: a line of L2, 128 bytes."""


def with_counters(count: int, launches: Into) -> Into:
    """`launches` with so many zeros behind the outputs; what they leave has to be zeros again."""

    def into(outputs: tuple[Tensor, ...], *args: Any) -> None:
        launches((*outputs, zeros(count, outputs[0].device)), *args)

    return into


def zeros(count: int, device: torch.device) -> Tensor:
    """The counters of this call; on a CPU, where launches are interpreted in order, new ones."""
    if device.type != "cuda":
        return torch.zeros(count, dtype=torch.int32, device=device)
    index = torch.cuda.current_device() if device.index is None else device.index
    slab = _slabs.get(index) or _made(index)
    if torch.cuda.is_current_stream_capturing():
        return slab.captured(count)
    return slab.of_stream(torch._C._cuda_getCurrentRawStream(index), count)


@dataclass
class Slab:
    """Zeros of one device, handed out from the start on."""

    memory: Tensor
    taken: int = 0
    streams: dict[int, Tensor] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def captured(self, count: int) -> Tensor:
        """For a call in a graph, never handed out again."""
        found = self._take(count)
        return torch.zeros(count, dtype=torch.int32, device=self.memory.device) if found is None else found

    def of_stream(self, stream: int, count: int) -> Tensor:
        """A stream's own, for all its launches."""
        own = self.streams.get(stream)
        if own is None or own.numel() < count:
            own = self._take(count)
            if own is None:
                return torch.zeros(count, dtype=torch.int32, device=self.memory.device)
            self.streams[stream] = own
        return own

    def _take(self, count: int) -> Tensor | None:
        with self.lock:
            if self.taken + count > self.memory.numel():
                return None
            start, self.taken = self.taken, self.taken + -(-count // APART) * APART
        return self.memory[start : start + count]


_slabs: dict[int, Slab] = {}
_making = threading.Lock()


def prepare() -> None:
    """Make the current GPU's slab, as nothing is zeroed aside while a graph is captured."""
    index = torch.cuda.current_device()
    if index not in _slabs and not torch.cuda.is_current_stream_capturing():
        _made(index)


def _made(index: int) -> Slab:
    """Zeroed before anyone on another stream can count by it. In a capture an empty one that is not kept: a call zeroes its own."""
    if torch.cuda.is_current_stream_capturing():
        return Slab(torch.empty(0, dtype=torch.int32, device=f"cuda:{index}"))
    with _making:
        if index not in _slabs:
            memory = torch.zeros(SLAB, dtype=torch.int32, device=f"cuda:{index}")
            torch.cuda.current_stream(index).synchronize()
            _slabs[index] = Slab(memory)
    return _slabs[index]
