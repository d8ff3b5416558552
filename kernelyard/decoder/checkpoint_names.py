"""Which tensor of a Hugging Face checkpoint is which rows of which of the Decoder's parameters. Imports no torch."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from kernelyard.decoder.presets import Preset

HEAD = "lm_head.weight"
EMBEDDING = "model.embed_tokens.weight"

LEFT_OUT = re.compile(r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq")
"""Buffers that old Llama checkpoints carry: they follow from config.json."""


@dataclass(frozen=True, slots=True)
class Place:
    """Rows `first` to `first + shape[0]` of a parameter: the tensor's shape is what they have."""

    parameter: str
    shape: tuple[int, ...]
    first: int = 0


def places(preset: Preset) -> dict[str, Place]:
    """By the checkpoint's names, every tensor that the decoder needs; a tied head needs none."""
    found = {EMBEDDING: Place("embedding", (preset.vocab, preset.hidden)), "model.norm.weight": Place("norm", (preset.hidden,))}
    if not preset.tied:
        found[HEAD] = Place("head", (preset.vocab, preset.hidden))
    for layer in range(preset.layers):
        for name, place in _block(preset):
            found[f"model.layers.{layer}.{name}"] = Place(f"blocks.{layer}.{place.parameter}", place.shape, place.first)
    return found


def _block(preset: Preset) -> Iterator[tuple[str, Place]]:
    hidden, wide, inner = preset.hidden, preset.heads * preset.head_dim, preset.intermediate
    yield "input_layernorm.weight", Place("attention_norm", (hidden,))
    yield "post_attention_layernorm.weight", Place("mlp_norm", (hidden,))
    first = 0
    for letter, heads in zip("qkv", (preset.heads, preset.kv_heads, preset.kv_heads), strict=True):
        rows = heads * preset.head_dim
        yield f"self_attn.{letter}_proj.weight", Place("qkv", (rows, hidden), first)
        if preset.qkv_bias:
            yield f"self_attn.{letter}_proj.bias", Place("qkv_bias", (rows,), first)
        first += rows
    yield "self_attn.o_proj.weight", Place("out", (hidden, wide))
    yield "mlp.gate_proj.weight", Place("gate_up", (inner, hidden))
    yield "mlp.up_proj.weight", Place("gate_up", (inner, hidden), inner)
    yield "mlp.down_proj.weight", Place("down", (hidden, inner))
