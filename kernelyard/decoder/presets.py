"""Model sizes, frozen: `tiny` for a CPU, `1b` and `8b` with the shapes of Llama 3. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from kernelyard.errors import UnknownName
from kernelyard.registry.spec import DTYPE_BYTES, require


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """How Llama 3.1 stretches its rotary frequencies from `original_context` positions to `factor` times as many.

    `low_freq_factor` and `high_freq_factor` bound the band between what is stretched and what is left: see `rotary`.
    """

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_context: int

    def __post_init__(self) -> None:
        require(self.factor >= 1, f"rope scaling: factor is {self.factor}, it must be at least 1")
        low, high = self.low_freq_factor, self.high_freq_factor
        require(0 < low < high, f"rope scaling: low_freq_factor {low} must be above 0 and below high_freq_factor {high}")
        require(self.original_context > 0, f"rope scaling: original_context is {self.original_context}, it must be at least 1")


@dataclass(frozen=True, slots=True)
class Preset:
    """The shape of a Llama-style decoder.

    `context` is the most positions a sequence may take; `tied` says that the output head is the embedding; `qkv_bias`, that
    q, k and v have a bias, as in Qwen2. `rope_theta` is the base of the rotary frequencies. `rope_scaling` is what a
    checkpoint asks for; the presets below go without, as with random weights it changes values, not time.
    """

    name: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    context: int
    tied: bool = False
    rope_theta: float = 500_000.0
    eps: float = 1e-5
    qkv_bias: bool = False
    rope_scaling: RopeScaling | None = None

    def __post_init__(self) -> None:
        sizes = ("hidden", "layers", "heads", "kv_heads", "head_dim", "intermediate", "vocab", "context")
        for name in sizes:
            require(getattr(self, name) > 0, f"preset '{self.name}': {name} is {getattr(self, name)}, it must be at least 1")
        require(self.heads % self.kv_heads == 0, f"preset '{self.name}': {self.heads} heads can't share {self.kv_heads} kv_heads evenly")
        require(self.head_dim % 2 == 0, f"preset '{self.name}': head_dim is {self.head_dim}, rotary embedding needs an even one")

    @property
    def group(self) -> int:
        """Query heads that share one key-value head; head h reads key-value head h // group."""
        return self.heads // self.kv_heads

    @property
    def parameters(self) -> int:
        """Weights in all, a tied head counted once."""
        attention = self.hidden * self.head_dim * (2 * self.heads + 2 * self.kv_heads)
        bias = self.head_dim * (self.heads + 2 * self.kv_heads) if self.qkv_bias else 0
        block = attention + bias + 3 * self.hidden * self.intermediate + 2 * self.hidden
        return self.layers * block + self.vocab * self.hidden * (1 if self.tied else 2) + self.hidden

    def weight_bytes(self, dtype: str) -> int:
        """Bytes of all weights."""
        return self.parameters * DTYPE_BYTES[dtype]

    def cache_bytes(self, dtype: str, batch: int, capacity: int) -> int:
        """Bytes of the keys and values of `capacity` positions."""
        return 2 * self.layers * batch * self.kv_heads * capacity * self.head_dim * DTYPE_BYTES[dtype]

    def working_bytes(self, dtype: str, batch: int, tokens: int) -> int:
        """About what one pass holds besides: the activations of a layer over these tokens, and the last position's logits."""
        widths = 5 * self.hidden + (3 * self.heads + 2 * self.kv_heads) * self.head_dim + 4 * self.intermediate
        return batch * (tokens * widths + self.vocab) * DTYPE_BYTES[dtype]


@dataclass(frozen=True, slots=True)
class Lengths:
    """What `profile` measures: prompt lengths, context lengths, and how many tokens are decoded at each context."""

    prompts: tuple[int, ...]
    contexts: tuple[int, ...]
    new_tokens: int


# tiny: 768 wide, so that norms are some percent of a decode step, as they are in 1b on a GPU, and 63 MB of float32
# weights, which leave most last-level caches, as real ones do. Two layers: compiling four took twice as long (23 CPU
# seconds a length), and shows nothing more.
PRESETS: Mapping[str, Preset] = MappingProxyType(
    {
        preset.name: preset
        for preset in (
            Preset("tiny", 768, 2, 12, 4, 64, 2048, 4096, 2048, tied=True),
            Preset("1b", 2048, 16, 32, 8, 64, 8192, 128_256, 131_072, tied=True),
            Preset("8b", 4096, 32, 32, 8, 128, 14_336, 128_256, 131_072),
        )
    }
)

LENGTHS: Mapping[str, Lengths] = MappingProxyType(
    {
        "cpu": Lengths(prompts=(16, 64), contexts=(16, 64), new_tokens=4),
        "cuda": Lengths(prompts=(128, 512, 2048), contexts=(128, 1024, 4096), new_tokens=32),
    }
)
"""Frozen per device class, so that two profiles of a preset compare."""

DTYPES: Mapping[str, str] = MappingProxyType({"cpu": "float32", "cuda": "bfloat16"})
"""The dtype of a model where none is asked for."""


def find(name: str) -> Preset:
    """The preset of this name; raises UnknownName with those that exist."""
    if name not in PRESETS:
        raise UnknownName("preset", name, PRESETS)
    return PRESETS[name]
