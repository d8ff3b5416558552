"""Greedy generation: the likeliest token, again and again."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from kernelyard.decoder.cache import KVCache
from kernelyard.errors import InvalidInput

Feed = Callable[[Tensor, KVCache], Tensor]
"""(tokens (batch, seq), cache) -> logits (batch, vocab): a `Decoder`, or an `Engine`."""


@torch.no_grad()
def generate(feed: Feed, prompt: Sequence[int], new_tokens: int, cache: KVCache, *, vocab: int | None = None) -> list[int]:
    """The tokens that follow the prompt, for a cache of batch 1; the cache keeps the sequence, so that a later call goes on.

    Nothing on the way waits for the device: the tokens come to the host once, at the end. Raises InvalidInput
    before any work where prompt and new tokens don't fit the cache together, or a token is not below `vocab`.
    """
    check(prompt, new_tokens, cache, vocab)
    device = cache.slots.device
    token = feed(torch.tensor([list(prompt)], device=device), cache).argmax(-1, keepdim=True)
    tokens = [token]
    for _ in range(new_tokens - 1):
        token = feed(token, cache).argmax(-1, keepdim=True)
        tokens.append(token)
    return [int(one) for one in torch.cat(tokens, 1)[0].tolist()]


def check(prompt: Sequence[int], new_tokens: int, cache: KVCache, vocab: int | None = None) -> None:
    """Raise InvalidInput for what `generate` can't do, before it does anything."""
    if not prompt or new_tokens < 1:
        raise InvalidInput(f"a prompt of {len(prompt)} tokens and {new_tokens} new ones.", do="Give at least one of each.")
    if cache.batch != 1:
        raise InvalidInput(f"generate continues one sequence, the cache has {cache.batch}.", do="Make a cache of batch 1.")
    cache.require(len(prompt) + new_tokens)
    worst = max(prompt) if min(prompt) >= 0 else min(prompt)
    if worst < 0 or (vocab is not None and worst >= vocab):
        raise InvalidInput(f"token {worst} is not in the vocabulary.", exists=f"Tokens are 0 to {vocab - 1 if vocab else 'vocab - 1'}.")
