from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from kernelyard.decoder import memory, presets
from kernelyard.decoder.cache import KVCache
from kernelyard.decoder.model import Decoder, attend_cache, rotate
from kernelyard.decoder.ops import PLAIN
from kernelyard.decoder.presets import Preset
from kernelyard.errors import InvalidInput, Unsupported

TOLERANCE = {"rtol": 1e-4, "atol": 1e-4}


def textbook(model: Decoder, tokens: Tensor) -> Tensor:
    """Logits of the last position by the formulas, in float64: no cache, no fused matrices' views, heads repeated."""
    shape, seq = model.preset, tokens.shape[1]
    weights = {name: tensor.double() for name, tensor in model.named_parameters()}

    def norm(x: Tensor, w: Tensor) -> Tensor:
        return x / (x.square().mean(-1, keepdim=True) + shape.eps).sqrt() * w

    def turned(x: Tensor) -> Tensor:
        half = shape.head_dim // 2
        angle = torch.arange(seq)[:, None].double() * shape.rope_theta ** (-torch.arange(half).double() / half)
        a, b = x[..., :half], x[..., half:]
        return torch.cat((a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()), -1)

    x = weights["embedding"][tokens]
    for layer in range(shape.layers):
        block = {name.removeprefix(f"blocks.{layer}."): w for name, w in weights.items() if name.startswith(f"blocks.{layer}.")}
        heads = (norm(x, block["attention_norm"]) @ block["qkv"].T).unflatten(-1, (-1, shape.head_dim)).transpose(1, 2)
        q, k, v = heads[:, : shape.heads], heads[:, shape.heads : -shape.kv_heads], heads[:, -shape.kv_heads :]
        q, k, v = turned(q), turned(k).repeat_interleave(shape.group, 1), v.repeat_interleave(shape.group, 1)
        scores = (q @ k.transpose(-1, -2) / shape.head_dim**0.5).masked_fill(torch.ones(seq, seq).triu(1).bool(), -torch.inf)
        x = x + (scores.softmax(-1) @ v).transpose(1, 2).flatten(2) @ block["out"].T
        h = norm(x, block["mlp_norm"]) @ block["gate_up"].T
        gate, up = h[..., : shape.intermediate], h[..., shape.intermediate :]
        x = x + (gate * gate.sigmoid() * up) @ block["down"].T
    return norm(x[:, -1], weights["norm"]) @ weights.get("head", weights["embedding"]).T


def random_tokens(preset: Preset, batch: int, seq: int) -> Tensor:
    return torch.randint(preset.vocab, (batch, seq), generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_a_prompt_agrees_with_the_formulas(preset: Preset, kv_heads: int) -> None:
    model = Decoder(replace(preset, kv_heads=kv_heads, tied=False), seed=1)
    tokens = random_tokens(preset, 2, 9)
    logits = model(tokens, KVCache(model.preset, 9, batch=2))
    torch.testing.assert_close(logits.double(), textbook(model, tokens), **TOLERANCE)


@pytest.mark.parametrize("pieces", [(1, *[1] * 8), (4, 5), (3, 1, 4, 1), (8, 1)])
def test_a_sequence_fed_in_pieces_gives_the_logits_of_the_whole(model: Decoder, preset: Preset, pieces: tuple[int, ...]) -> None:
    tokens = random_tokens(preset, 2, 9)
    cache, end = KVCache(preset, 12, batch=2), 0
    for piece in pieces:
        logits = model(tokens[:, end : end + piece], cache)
        end += piece
        torch.testing.assert_close(logits.double(), textbook(model, tokens[:, :end]), **TOLERANCE)


def test_slots_that_are_not_taken_do_not_matter(model: Decoder, preset: Preset) -> None:
    tokens, cache, dirty = random_tokens(preset, 1, 6), KVCache(preset, 16), KVCache(preset, 16)
    for tensor in (*dirty.keys, *dirty.values):
        tensor.fill_(3.0)
    for piece in (tokens[:, :5], tokens[:, 5:]):
        clean, other = model(piece, cache), model(piece, dirty)
    torch.testing.assert_close(other, clean)


@pytest.mark.parametrize(("heads", "groups"), [(6, 2), (7, 1), (24, 1), (28, 4), (4, 4)])
def test_a_query_head_reads_its_group(heads: int, groups: int) -> None:
    q, keys, values = torch.randn(2, heads, 3, 8), torch.randn(2, groups, 5, 8), torch.randn(2, groups, 5, 8)
    mask = torch.zeros(3, 5).masked_fill(torch.arange(5) > torch.arange(2, 5)[:, None], -torch.inf)
    repeated = [x.repeat_interleave(heads // groups, 1) for x in (keys, values)]
    expected = F.scaled_dot_product_attention(q, *repeated, attn_mask=mask)
    torch.testing.assert_close(attend_cache(q, keys, values, mask.repeat(heads // groups, 1), PLAIN), expected)


def test_rotation_keeps_what_attention_sees_of_two_positions_apart() -> None:
    """q at m times k at n depends on m - n alone: the law that rotary embedding is made for."""
    q, k = torch.randn(1, 1, 1, 16, dtype=torch.float64), torch.randn(1, 1, 1, 16, dtype=torch.float64)
    angles = torch.arange(20, dtype=torch.float64)[:, None] * 100.0 ** (-torch.arange(8, dtype=torch.float64) / 8)

    def product(m: int, n: int) -> Tensor:
        return (rotate(q, angles[m].cos(), angles[m].sin()) * rotate(k, angles[n].cos(), angles[n].sin())).sum()

    torch.testing.assert_close(product(13, 9), product(4, 0))
    assert not torch.isclose(product(13, 9), product(9, 13))


def test_one_seed_makes_the_same_weights_and_another_does_not(model: Decoder, preset: Preset) -> None:
    again, other = Decoder(preset, seed=0).state_dict(), Decoder(preset, seed=1).state_dict()
    for name, weight in model.state_dict().items():
        assert torch.equal(weight, again[name])
        assert not torch.equal(weight, other[name])


def test_weights_count_as_the_preset_says(model: Decoder, preset: Preset) -> None:
    assert sum(weight.numel() for weight in model.parameters()) == preset.parameters


def test_a_preset_too_large_is_refused_before_anything_is_allocated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "free_bytes", lambda device_type: 3 << 30)

    def allocate(*args: object, **kwargs: object) -> Tensor:
        raise AssertionError("allocated")

    monkeypatch.setattr(torch, "empty", allocate)
    with pytest.raises(Unsupported, match=r"preset 8b in float32 need 29\.92 GiB, which doesn't fit on cpu\. Free: 3\.00 GiB\."):
        Decoder(presets.find("8b"))


def test_the_host_says_how_much_memory_is_free() -> None:
    assert 0 < memory.free_bytes("cpu") < 1 << 50


def test_a_control_group_bounds_what_is_free(tmp_path) -> None:
    (tmp_path / "memory.max").write_text("1000\n")
    (tmp_path / "memory.current").write_text("400\n")
    assert memory._group_available(tmp_path) == 600
    (tmp_path / "memory.max").write_text("max\n")
    assert memory._group_available(tmp_path) > 1 << 50


def test_tokens_of_another_batch_are_refused(model: Decoder, cache: KVCache) -> None:
    with pytest.raises(InvalidInput, match=r"tokens have shape \(2, 3\)\. Give \(batch, seq\); the cache is for a batch of 1"):
        model(torch.zeros(2, 3, dtype=torch.int64), cache)


def test_no_tokens_are_refused(model: Decoder, cache: KVCache) -> None:
    with pytest.raises(InvalidInput, match="0 tokens were given"):
        model(torch.zeros(1, 0, dtype=torch.int64), cache)
