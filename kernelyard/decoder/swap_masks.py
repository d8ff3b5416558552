"""What a mask of transformers lets each query see, where that is what the ops of attention mean: causal, or everything.

Reading a mask waits for the device, once for a pass, since its layers share the mask. Where nobody may wait, inside a compiled graph or
while a CUDA graph is captured, the answer is no.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kernelyard.decoder.swap_serving import capturing

GROWS = "the cache grows: each length would have its kernel chosen (some ms a token); use a static cache"
"""A selection took 5 ms of CPU time for each new length on a slow core, a call of the kernel then 0.3 ms."""


@dataclass(frozen=True)
class Seen:
    """The first `keys` keys, by all queries or causally with the last query seeing all of them; for one query a sequence, how many
    each sequence has, (batch,) int32."""

    causal: bool
    keys: int
    lengths: Tensor | None


def seen(mask: Tensor, batch: int, q_len: int, kv_len: int) -> Seen | str:
    """What a mask (batch or 1, 1, q_len, kv_len), boolean or added to scores, lets through; a sentence where no op means that."""
    if torch.compiler.is_compiling() or capturing(mask):
        return "a mask can't be read inside a graph"
    if mask.dim() != 4 or mask.shape[0] not in (1, batch) or mask.shape[1:] != (1, q_len, kv_len):
        return f"a mask of shape {tuple(mask.shape)} for {q_len} queries and {kv_len} keys"
    allowed = mask if mask.dtype == torch.bool else mask == 0
    counts = allowed.sum(-1)[:, 0]
    keys, causal, full, fewest = _facts(mask, allowed, counts)
    if keys < 0:
        return "a bias on scores" if mask.dtype != torch.bool and _biased(mask) else "padding or a sliding window"
    if q_len == 1 and fewest > 0:
        lengths = counts[:, 0].to(torch.int32).expand(batch).contiguous()
        return GROWS if fewest == kv_len else Seen(False, keys, lengths)
    if fewest == 0 or not (causal or full):
        return "sequences of different lengths, or queries that see nothing"
    return Seen(bool(causal), keys, None)


def _facts(mask: Tensor, allowed: Tensor, counts: Tensor) -> tuple[int, int, int, int]:
    """Of counts (batch, q_len), in one transfer: how many keys the last query of the first sequence sees, -1 where some query skips a key
    or a score is biased; whether all sequences are causal and see as many, or all queries see as many; the fewest that one sees."""
    q_len, kv_len = allowed.shape[2:]
    last, steps = counts[:1, -1:], torch.arange(1 - q_len, 1, device=mask.device)
    first_on = (allowed[:, 0] == (torch.arange(kv_len, device=mask.device) < counts[..., None])).all()
    plain = first_on if mask.dtype == torch.bool else first_on & (allowed | _blocked(mask)).all()
    facts = (torch.where(plain, last[0, 0], -1), (counts == last + steps).all(), (counts == last).all(), counts.min())
    keys, causal, full, fewest = torch.stack([fact.long() for fact in facts]).tolist()
    return keys, causal, full, fewest


def _blocked(mask: Tensor) -> Tensor:
    """Keys that an added mask shuts out: by -inf, or by the lowest number, as transformers does."""
    return mask <= torch.finfo(mask.dtype).min


def _biased(mask: Tensor) -> bool:
    return bool(((mask != 0) & ~_blocked(mask)).any())
