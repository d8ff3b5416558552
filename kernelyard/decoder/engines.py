"""Ways to run one model: eager with some ops served by the registry, compiled, or its decode step as a CUDA graph.

All share its weights and answer alike.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from kernelyard.decoder.cache import KVCache
from kernelyard.decoder.model import Decoder, Path, feed
from kernelyard.decoder.ops import PLAIN, OpTable, swapped
from kernelyard.errors import InvalidInput


@dataclass(frozen=True)
class Engine:
    """A name for tables, the model's two paths, and who serves its ops."""

    name: str
    prompt: Path
    extend: Path
    ops: OpTable

    @torch.no_grad()
    def __call__(self, tokens: Tensor, cache: KVCache) -> Tensor:
        """Logits (batch, vocab) after tokens (batch, seq), as a Decoder gives them."""
        return feed(self.prompt, self.extend, tokens, cache, self.ops)


def eager(name: str, model: Decoder, ops: tuple[str, ...] = ()) -> Engine:
    """The model as Python runs it: these ops as dispatch selects them, the others as torch has them, with no dispatch to pay.

    With none, it is what a user has without kernelyard, and so the reference. `kernelyard.use` around a call acts on `ops`.
    """
    return Engine(name, model.prompt, model.extend, swapped(ops))


def compiled(name: str, model: Decoder, backend: str = "inductor") -> Engine:
    """torch.compile over the model in plain torch, so that the compiler may fuse what a registered operator would hide.

    Every shape is compiled for itself (dynamic=False): what a careful user of static shapes gets.
    """
    prompt, extend = (torch.compile(path, dynamic=False, backend=backend) for path in (model.prompt, model.extend))
    return Engine(name, prompt, extend, PLAIN)


def graphed(name: str, engine: Engine, cache: KVCache) -> Engine:
    """An engine whose decode step over this cache is one CUDA graph, of the kernels that dispatch selects now."""
    with torch.no_grad():
        step = GraphStep(engine.extend, cache, engine.ops)
    return replace(engine, name=name, extend=step)


class GraphStep:
    """A decode step captured as one CUDA graph over one cache; it owns the buffers that are refilled at each step.

    Token and position are copied in, and the mask is computed inside from the position, so a replay is right at any
    length. The logits are the graph's own memory: valid until the next step. Several tokens at once run uncaptured.
    """

    def __init__(self, extend: Path, cache: KVCache, ops: OpTable) -> None:
        cache.require(1)
        self._extend, self._cache, self._ops = extend, cache, ops
        self._tokens = torch.zeros(cache.batch, 1, dtype=torch.int64, device=cache.slots.device)
        self._position = torch.full((1,), cache.capacity - 1, dtype=torch.int64, device=cache.slots.device)
        self._warm_up()
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._logits = self._run()
        for tensor in (*cache.keys, *cache.values):
            tensor[:, :, -1].zero_()  # the slot that the warm-up wrote; it was free

    def _warm_up(self) -> None:
        """On a side stream, as capture asks: kernels are chosen, built and loaded here."""
        stream: torch.cuda.Stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                self._run()
        torch.cuda.current_stream().wait_stream(stream)

    def _run(self) -> Tensor:
        return self._extend(self._tokens, self._position, self._cache, self._ops)

    def __call__(self, tokens: Tensor, positions: Tensor, cache: KVCache, ops: OpTable) -> Tensor:
        """A Path: logits (batch, vocab) after one more token each; raises InvalidInput for another cache."""
        if cache is not self._cache:
            raise InvalidInput("this graph was captured over another cache.", do="Reset and reuse that one, or capture anew.")
        if tokens.shape[1] != 1:
            return self._extend(tokens, positions, cache, ops)
        self._tokens.copy_(tokens)
        self._position.copy_(positions)
        self._graph.replay()
        return self._logits
