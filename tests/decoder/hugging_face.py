"""Tiny random models of transformers, for tests of what is done to them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

VOCAB = 97
SIZES = {
    "vocab_size": VOCAB, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": None,
}  # fmt: skip
FAMILIES = ("Llama", "Qwen2", "Mistral")


def tiny(family: str, attention: str = "sdpa", **changes: Any) -> Any:
    """A causal language model with weights large enough that a layer left out shows."""
    import transformers

    config = getattr(transformers, f"{family}Config")(**SIZES | {"initializer_range": 0.1} | changes)
    torch.manual_seed(0)
    model = getattr(transformers, f"{family}ForCausalLM")._from_config(config, attn_implementation=attention).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "norm" in name:
                weight.normal_(1.0, 0.1)
    return model


def prompts(batch: int = 2, length: int = 7) -> Tensor:
    return torch.randint(1, VOCAB, (batch, length), generator=torch.Generator().manual_seed(1))


def left_padded() -> tuple[Tensor, Tensor]:
    """Two prompts, one of which is 3 tokens shorter, and their mask."""
    tokens = prompts()
    tokens[0, :3] = 0
    return tokens, (tokens != 0).long()


def continued(model: Any, tokens: Tensor, mask: Tensor | None = None, cache: str | None = None) -> list[list[int]]:
    """Eight greedy tokens after each prompt."""
    asked = {"attention_mask": torch.ones_like(tokens) if mask is None else mask, "max_new_tokens": 8, "do_sample": False}
    out = model.generate(tokens, **asked, **({"cache_implementation": cache} if cache else {}))
    return out[:, tokens.shape[1] :].tolist()


@torch.no_grad()
def logits(model: Any, tokens: Tensor, **given: Any) -> Tensor:
    return model(tokens, use_cache=False, **given).logits
