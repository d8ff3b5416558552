from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from kernelyard.decoder import checkpoint_names, presets
from kernelyard.decoder.cache import KVCache
from kernelyard.decoder.checkpoint import find
from kernelyard.decoder.model import Decoder
from kernelyard.decoder.ops import PLAIN
from kernelyard.errors import InvalidInput
from tests.decoder.checkpoints import edit_config, edit_tensors, llama, mistral, qwen2

LENGTH = 100  # beyond the 64 positions of LLAMA3's original context
TOKENS = torch.randint(131, (2, LENGTH), generator=torch.Generator().manual_seed(3))

MODELS: dict[str, Callable[[], Any]] = {
    "llama": llama,
    "llama-tied": lambda: llama(tie_word_embeddings=True),
    "llama-plain-rope": lambda: llama(rope_parameters={"rope_type": "default", "rope_theta": 500.0}, head_dim=16),
    "qwen2": qwen2,
    "qwen2-tied": lambda: qwen2(tie_word_embeddings=True),
    "mistral": mistral,
}


@pytest.fixture(scope="module", params=MODELS)
def theirs(request: pytest.FixtureRequest) -> Any:
    return MODELS[request.param]()


@pytest.fixture
def folder(theirs: Any, tmp_path: Path) -> Path:
    theirs.save_pretrained(tmp_path)
    return tmp_path


def logits_of(model: Any) -> Tensor:
    """transformers' logits (batch, LENGTH, vocab)."""
    with torch.no_grad():
        return model(TOKENS).logits.float()


def pieces(model: Decoder, first: int, last: int) -> Tensor:
    """Our logits after a prompt of `first` tokens and after each of those up to `last`, (batch, steps, vocab).

    In plain torch: kernels are tested elsewhere.
    """
    cache = KVCache(model.preset, last, batch=2, dtype=model.embedding.dtype)
    logits = [model(TOKENS[:, :first], cache, PLAIN)]
    logits += [model(TOKENS[:, at : at + 1], cache, PLAIN) for at in range(first, last)]
    return torch.stack(logits, 1).float()


@pytest.mark.parametrize("length", [1, 9, LENGTH])
def test_a_prompt_has_the_logits_of_transformers(theirs: Any, folder: Path, length: int) -> None:
    ours = pieces(find(folder).load(), length, length)
    torch.testing.assert_close(ours[:, 0], logits_of(theirs)[:, length - 1], rtol=1e-4, atol=1e-4)


def test_each_step_after_a_prompt_has_the_logits_of_transformers(theirs: Any, folder: Path) -> None:
    ours = pieces(find(folder).load(), 60, 75)
    torch.testing.assert_close(ours, logits_of(theirs)[:, 59:75], rtol=1e-4, atol=1e-4)


Spans = list[tuple[int, int]]
SPANS: dict[str, Spans] = {"prompt": [(length, length) for length in (2, 5, 9, 17, 33, 65, LENGTH)], "step": [(9, 20), (60, 70)]}


@pytest.mark.parametrize("spans", SPANS.values(), ids=SPANS)
def test_in_bf16_the_logits_are_as_far_from_float32_as_those_of_transformers(theirs: Any, folder: Path, spans: Spans) -> None:
    """Both round the same weights and some hundred values on the way, so the errors are alike in size.

    The ratio is 0.82 to 1.08 for these models; 1.5 leaves room for luck, and unscaled frequencies or no bias give 50 to 75.
    """
    model = find(folder).load(dtype=torch.bfloat16)
    half = type(theirs).from_pretrained(folder, dtype=torch.bfloat16)
    at = [position for first, last in spans for position in range(first - 1, last)]
    rounded, exact = logits_of(half)[:, at], logits_of(half.float())[:, at]
    noise = (rounded - exact).square().mean().sqrt()
    assert 0 < noise < 0.1 * exact.std()
    ours = torch.cat([pieces(model, *span) for span in spans], 1)
    assert (ours - exact).square().mean().sqrt() < 1.5 * noise


def test_shards_make_the_same_model_as_one_file(tmp_path: Path) -> None:
    theirs = llama()
    theirs.save_pretrained(tmp_path / "one")
    theirs.save_pretrained(tmp_path / "many", max_shard_size="60KB")
    assert len(list((tmp_path / "many").glob("*.safetensors"))) > 3
    one, many = find(tmp_path / "one").load(), find(tmp_path / "many").load()
    for name, weight in one.named_parameters():
        assert torch.equal(weight, many.get_parameter(name))


@pytest.mark.parametrize("qkv_bias", [False, True])
def test_the_tensors_of_a_checkpoint_fill_every_row_of_every_parameter_once(qkv_bias: bool) -> None:
    preset = replace(presets.find("tiny"), kv_heads=3, qkv_bias=qkv_bias, tied=False)
    model = Decoder(preset, seed=None)
    for weight in model.parameters():
        weight.zero_()
    for place in checkpoint_names.places(preset).values():
        rows = model.get_parameter(place.parameter).narrow(0, place.first, place.shape[0])
        assert rows.shape == place.shape
        rows += 1
    assert all((weight == 1).all() for weight in model.parameters())
    assert sum(weight.numel() for weight in model.parameters()) == preset.parameters


def test_the_dtype_is_the_configs_unless_another_is_asked_for(tmp_path: Path) -> None:
    llama().bfloat16().save_pretrained(tmp_path)
    checkpoint = find(tmp_path)
    assert checkpoint.dtype == "bfloat16" and checkpoint.load().head.dtype == torch.bfloat16
    wide = checkpoint.load(dtype=torch.float32)
    assert torch.equal(wide.head, checkpoint.load().head.float())


def test_the_dtype_is_the_files_where_the_config_has_none(tmp_path: Path) -> None:
    llama().half().save_pretrained(tmp_path)
    edit_config(tmp_path, dtype=None)
    assert find(tmp_path).dtype == "float16"


def test_a_tied_head_that_is_stored_too_is_left_out_if_it_is_the_embedding(tmp_path: Path) -> None:
    llama(tie_word_embeddings=True).save_pretrained(tmp_path)
    edit_tensors(tmp_path, lambda tensors: tensors.update({"lm_head.weight": tensors["model.embed_tokens.weight"].clone()}))
    model = find(tmp_path).load()
    assert model.head is model.embedding
    edit_tensors(tmp_path, lambda tensors: tensors["lm_head.weight"][3].neg_())
    with pytest.raises(InvalidInput, match=r"lm_head\.weight that is not the embedding.*Set tie_word_embeddings to false"):
        find(tmp_path).load()


def test_frequencies_that_an_old_checkpoint_stores_are_left_out(tmp_path: Path) -> None:
    llama().save_pretrained(tmp_path)
    edit_tensors(tmp_path, lambda tensors: tensors.update({"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(16)}))
    find(tmp_path).load()
