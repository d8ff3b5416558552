"""Checkpoints that transformers itself writes: tiny, random, and with weights large enough for a wrong rotation or bias to be seen."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

os.environ["HF_HUB_OFFLINE"] = "1"  # read on import: nothing is asked of the Hub

import transformers

transformers.utils.logging.disable_progress_bar()

SIZES: dict[str, Any] = dict(
    vocab_size=131, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
    max_position_embeddings=256, rms_norm_eps=1e-5,
)  # fmt: skip

# Of the 16 wavelengths of a head of 32, from 6.3 to 35 thousand positions, some are below 64 / 4, some above 64, some between.
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 10_000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip


def llama(**changes: Any) -> Any:
    """A Llama with Llama 3's rotary scaling and heads of 32, twice as wide as hidden_size / heads."""
    return _random(transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES | dict(head_dim=32, rope_parameters=LLAMA3) | changes)))


def qwen2(**changes: Any) -> Any:
    return _random(transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**SIZES | changes)))


def mistral(**changes: Any) -> Any:
    return _random(transformers.MistralForCausalLM(transformers.MistralConfig(**SIZES | dict(sliding_window=None) | changes)))


@torch.no_grad()
def _random(model: Any) -> Any:
    """Attention that looks somewhere (scores of about +-2), norms and biases that matter, logits of about 1."""
    generator = torch.Generator().manual_seed(7)
    for name, weight in model.named_parameters():
        if "norm" in name:
            weight.normal_(1.0, 0.2, generator=generator)
        elif weight.dim() == 1:
            weight.normal_(0.0, 0.5, generator=generator)
        else:
            weight.normal_(0.0, (2.0 if "q_proj" in name else 1.0) * weight.shape[1] ** -0.5, generator=generator)
    return model.eval()


def edit_config(folder: Path, **changes: Any) -> None:
    """Change keys of config.json; None takes a key away."""
    path = folder / "config.json"
    config = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in config.items() if key not in changes or value is not None}))


def edit_tensors(folder: Path, edit: Callable[[dict[str, torch.Tensor]], object]) -> None:
    """Change the dictionary of tensors in model.safetensors."""
    tensors = load_file(folder / "model.safetensors")
    edit(tensors)
    save_file(tensors, folder / "model.safetensors")
