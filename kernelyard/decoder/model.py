"""A Llama-style decoder, all of it: RMSNorm, grouped-query attention with rotary embedding, SwiGLU, residuals.

Shapes: tokens (batch, seq) int64; x (batch, seq, hidden); q, k, v (batch, heads, seq, head_dim); logits (batch, vocab) of
the last position. Two paths, both free of host decisions, so that each can be compiled or captured:

- `prompt`: the first tokens of an empty cache. Attention is F.scaled_dot_product_attention over these tokens alone.
- `extend`: tokens after others; one for a decode step. Attention reads the whole static cache and masks what is not
  taken, so shapes never change from step to step; its softmax is the registered one.

Sources: Touvron et al., "LLaMA" (2023), section 2.2; Ainslie et al., "GQA" (2023); Su et al., "RoFormer" (2021), section 3.4,
with the pairs half a head apart, as Llama checkpoints in the Hugging Face layout have them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kernelyard.decoder import memory, rotary
from kernelyard.decoder.cache import KVCache
from kernelyard.decoder.ops import OpTable, registered
from kernelyard.decoder.presets import Preset
from kernelyard.errors import InvalidInput

Path = Callable[[Tensor, Tensor, KVCache, OpTable], Tensor]
"""(tokens, positions, cache, ops) -> logits: `Decoder.prompt`, `Decoder.extend`, or one of them compiled."""


class Step(NamedTuple):
    """What all layers of one pass share: positions (seq,), rotary cos and sin (seq, head_dim / 2), and the additive
    mask (heads per key-value head * seq, capacity) over the cache; None where attention stays within the prompt."""

    positions: Tensor
    cos: Tensor
    sin: Tensor
    mask: Tensor | None


class Decoder(nn.Module):
    """Seeded random weights, made on the device; they ask for no gradient: this model is for inference.

    Without a seed they stay as allocated, for a loader to fill. Raises Unsupported, before allocating, where they don't fit in memory.
    """

    def __init__(
        self, preset: Preset, *, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32, seed: int | None = 0
    ) -> None:
        super().__init__()
        self.preset = preset
        place = torch.device(device)
        if place.type != "meta":
            name = str(dtype).removeprefix("torch.")
            memory.require(preset.weight_bytes(name), place.type, f"the weights of preset {preset.name} in {name}")
        with place:
            self.embedding = _weight(preset.vocab, preset.hidden, dtype=dtype)
            self.blocks = nn.ModuleList(Block(preset, dtype) for _ in range(preset.layers))
            self.norm = _weight(preset.hidden, dtype=dtype)
            self.head = self.embedding if preset.tied else _weight(preset.vocab, preset.hidden, dtype=dtype)
        self.frequencies: Tensor
        self.register_buffer("frequencies", rotary.frequencies(preset, place), persistent=False)
        if place.type != "meta" and seed is not None:
            randomise(self, seed)

    @torch.no_grad()
    def forward(self, tokens: Tensor, cache: KVCache, ops: OpTable | None = None) -> Tensor:
        """Logits (batch, vocab) after these tokens, which take the cache's next positions.

        Raises InvalidInput, before anything is written, where they don't fit.
        """
        return feed(self.prompt, self.extend, tokens, cache, ops or registered())

    def prompt(self, tokens: Tensor, positions: Tensor, cache: KVCache, ops: OpTable) -> Tensor:
        """The first tokens of an empty cache."""
        return self._run(tokens, Step(positions, *self._rotation(positions), None), cache, ops)

    def extend(self, tokens: Tensor, positions: Tensor, cache: KVCache, ops: OpTable) -> Tensor:
        """Tokens after those in the cache."""
        unseen = cache.slots > positions[:, None]
        mask = torch.zeros(unseen.shape, dtype=self.norm.dtype, device=unseen.device).masked_fill(unseen, -torch.inf)
        grouped = mask.repeat(self.preset.group, 1)
        return self._run(tokens, Step(positions, *self._rotation(positions), grouped), cache, ops)

    def _run(self, tokens: Tensor, step: Step, cache: KVCache, ops: OpTable) -> Tensor:
        x = F.embedding(tokens, self.embedding)
        for block, keys, values in zip(self.blocks, cache.keys, cache.values, strict=True):
            x = block(x, step, keys, values, ops)
        last = x[:, -1:].contiguous()
        return F.linear(ops.rmsnorm(last, self.norm, self.preset.eps), self.head)[:, 0]

    def _rotation(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        cos, sin = rotary.turned(positions, self.frequencies)
        return cos.to(self.norm.dtype), sin.to(self.norm.dtype)


class Block(nn.Module):
    """One layer: attention and a gated MLP, each on a normed copy of the residual stream. Linears that read the same
    input are one matrix: (q, k, v) and (gate, up)."""

    def __init__(self, preset: Preset, dtype: torch.dtype) -> None:
        super().__init__()
        self.preset = preset
        heads = (preset.heads + 2 * preset.kv_heads) * preset.head_dim
        self.attention_norm = _weight(preset.hidden, dtype=dtype)
        self.qkv = _weight(heads, preset.hidden, dtype=dtype)
        self.qkv_bias = _weight(heads, dtype=dtype) if preset.qkv_bias else None
        self.out = _weight(preset.hidden, preset.heads * preset.head_dim, dtype=dtype)
        self.mlp_norm = _weight(preset.hidden, dtype=dtype)
        self.gate_up = _weight(2 * preset.intermediate, preset.hidden, dtype=dtype)
        self.down = _weight(preset.hidden, preset.intermediate, dtype=dtype)

    def forward(self, x: Tensor, step: Step, keys: Tensor, values: Tensor, ops: OpTable) -> Tensor:
        """x and the result (batch, seq, hidden); keys and values are the layer's cache, written in place."""
        eps = self.preset.eps
        attended = self._attend(ops.rmsnorm(x, self.attention_norm, eps), step, keys, values, ops)
        x = ops.vector_add(x, F.linear(attended, self.out))
        gate, up = F.linear(ops.rmsnorm(x, self.mlp_norm, eps), self.gate_up).chunk(2, -1)
        return ops.vector_add(x, F.linear(F.silu(gate) * up, self.down))

    def _attend(self, x: Tensor, step: Step, keys: Tensor, values: Tensor, ops: OpTable) -> Tensor:
        shape = self.preset
        batch, seq, _ = x.shape
        heads = F.linear(x, self.qkv, self.qkv_bias).view(batch, seq, -1, shape.head_dim).transpose(1, 2)
        q, k, v = torch.split(heads, [shape.heads, shape.kv_heads, shape.kv_heads], dim=1)
        q, k = rotate(q, step.cos, step.sin), rotate(k, step.cos, step.sin)
        keys.index_copy_(2, step.positions, k)
        values.index_copy_(2, step.positions, v)
        if step.mask is None:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=shape.group > 1)
        else:
            y = attend_cache(q, keys, values, step.mask, ops)
        return y.transpose(1, 2).reshape(batch, seq, -1)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding of x (batch, heads, seq, head_dim): dimension i turns with dimension i + head_dim / 2."""
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


def attend_cache(q: Tensor, keys: Tensor, values: Tensor, mask: Tensor, ops: OpTable) -> Tensor:
    """Attention of q (batch, heads, seq, head_dim) over a static cache under an additive mask (rows, capacity).

    The query heads of one key-value head are rows of one product, so that each key and value is read once: row j * seq + s
    is the group's head j at position s.
    """
    batch, heads, seq, dim = q.shape
    groups, capacity = keys.shape[1], keys.shape[2]
    rows = q.reshape(batch * groups, heads // groups * seq, dim)
    scores = torch.baddbmm(mask.expand(batch * groups, -1, -1), rows, keys.view(-1, capacity, dim).transpose(1, 2), alpha=dim**-0.5)
    return torch.bmm(ops.softmax(scores), values.view(-1, capacity, dim)).view(q.shape)


def feed(prompt: Path, extend: Path, tokens: Tensor, cache: KVCache, ops: OpTable) -> Tensor:
    """Run the path that fits the cache's state, then count the tokens as taken; raises InvalidInput before any write."""
    if tokens.dim() != 2 or tokens.shape[0] != cache.batch:
        raise InvalidInput(f"tokens have shape {tuple(tokens.shape)}.", do=f"Give (batch, seq); the cache is for a batch of {cache.batch}.")
    count = tokens.shape[1]
    positions = cache.next_positions(count)
    logits = (extend if cache.length else prompt)(tokens, positions, cache, ops)
    cache.advance(count)
    return logits


def _weight(*shape: int, dtype: torch.dtype) -> nn.Parameter:
    return nn.Parameter(torch.empty(shape, dtype=dtype), requires_grad=False)


@torch.no_grad()
def randomise(model: Decoder, seed: int) -> None:
    """Fill the weights from one seed, on their device, in the order of their names.

    Matrices get a standard deviation of 1 / sqrt(columns), so that activations neither die nor explode; the embedding
    0.02, as Llama's initialiser, so that a tied head doesn't just repeat its input; norms 1 +- 0.1 and biases
    0 +- 0.1, so that a kernel that forgets either is seen in the logits.
    """
    generator = torch.Generator(model.embedding.device).manual_seed(seed)
    for name, weight in _by_name(model):
        if weight.dim() == 1:
            weight.normal_(0.0 if name.endswith("bias") else 1.0, 0.1, generator=generator)
        else:
            weight.normal_(0.0, 0.02 if name == "embedding" else weight.shape[1] ** -0.5, generator=generator)


def _by_name(model: Decoder) -> Iterator[tuple[str, Tensor]]:
    return iter(sorted(model.named_parameters(), key=lambda pair: pair[0]))
