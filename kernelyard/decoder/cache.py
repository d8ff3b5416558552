"""A static key-value cache: allocated once, written in place, so that a CUDA graph or a compiled step can hold its address."""

from __future__ import annotations

import torch
from torch import Tensor

from kernelyard.decoder.presets import Preset
from kernelyard.errors import InvalidInput


class KVCache:
    """Keys and values of `capacity` positions for each layer, (batch, kv_heads, capacity, head_dim), and how many are taken.

    The slots past `length` hold zeros or what an earlier, rewound step wrote; attention masks them. They must stay
    finite, since a weight of zero times NaN is NaN: that is why memory starts, and is reset, as zeros.
    """

    def __init__(
        self, preset: Preset, capacity: int, *, batch: int = 1, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32
    ) -> None:
        if capacity < 1 or batch < 1:
            raise InvalidInput(f"a cache of {capacity} positions for {batch} sequences holds nothing.", do="Give both as 1 or more.")
        self.batch, self.capacity, self.length = batch, capacity, 0
        shape = (batch, preset.kv_heads, capacity, preset.head_dim)
        self.keys = [torch.zeros(shape, device=device, dtype=dtype) for _ in range(preset.layers)]
        self.values = [torch.zeros(shape, device=device, dtype=dtype) for _ in range(preset.layers)]
        self.slots = torch.arange(capacity, device=device)

    def require(self, count: int) -> None:
        """Raise InvalidInput unless `count` more positions fit; nothing is written either way."""
        if count < 1:
            raise InvalidInput(f"{count} tokens were given to the decoder.", do="Give at least 1.")
        if self.length + count > self.capacity:
            raise InvalidInput(
                f"{count} more positions don't fit the key-value cache.",
                exists=f"It holds {self.capacity}, of which {self.length} are taken.",
                do=f"Make it with a capacity of at least {self.length + count}, or reset it.",
            )

    def next_positions(self, count: int) -> Tensor:
        """The positions, (count,) int64, that the next tokens take; raises InvalidInput where they don't fit."""
        self.require(count)
        return self.slots[self.length : self.length + count]

    def advance(self, count: int) -> None:
        """Count positions as taken, after they have been written."""
        self.require(count)
        self.length += count

    def rewind(self, length: int) -> None:
        """Go back (or, where the slots were filled by hand, forward) to a length; the contents stay."""
        if not 0 <= length <= self.capacity:
            raise InvalidInput(f"a cache can't have the length {length}.", exists=f"It holds {self.capacity} positions.")
        self.length = length

    def reset(self) -> None:
        """Forget everything: no position taken, every slot zero, the same memory."""
        self.length = 0
        for tensor in (*self.keys, *self.values):
            tensor.zero_()

    def fill(self, length: int, seed: int = 0) -> None:
        """Take `length` positions with seeded normal values: a context for timing a decode step without its prefill."""
        self.rewind(length)
        generator = torch.Generator(self.keys[0].device).manual_seed(seed)
        for tensor in (*self.keys, *self.values):
            tensor[:, :, :length].normal_(generator=generator)
