"""Rotary embedding's frequencies, plain or stretched as Llama 3.1 does, and the cos and sin that op `rope` reads.

Pair i of a head (dimensions i and i + head_dim / 2) turns by f(i) radians a position, f(i) = theta^(-2i / head_dim). It comes round
in 2 pi / f positions, so in a context of C it turns r = C f / (2 pi) times. With C the original context, Llama 3.1 has

    f               where r > high_freq_factor      (short waves tell neighbours apart: left alone)
    f / factor      where r < low_freq_factor       (waves longer than the old context: stretched to the new one)
    (1 - s) f / factor + s f    between, with s = (r - low_freq_factor) / (high_freq_factor - low_freq_factor)

which is one formula, s held to 0..1. Sources: Su et al., "RoFormer" (2021), section 3.4; `apply_scaling` in the model code that was
released with Llama 3.1 (2024); `_compute_llama3_parameters` in transformers' modeling_rope_utils.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from kernelyard.decoder.presets import Preset, RopeScaling


def frequencies(preset: Preset, device: torch.device | str) -> Tensor:
    """Radians a position, (head_dim / 2,) float32.

    Computed on the host whatever the device: a GPU's pow may differ in the last bit, which at position 131071 is up to 0.008 radian.
    """
    powers = torch.arange(0, preset.head_dim, 2, dtype=torch.float32, device="cpu") / preset.head_dim
    plain = 1.0 / preset.rope_theta**powers
    return (plain if preset.rope_scaling is None else _scaled(plain, preset.rope_scaling)).to(device)


def table(preset: Preset, positions_count: int, device: torch.device | str) -> tuple[Tensor, Tensor]:
    """cos and sin of positions 0 to positions_count - 1, each (positions_count, head_dim / 2) float32."""
    return turned(torch.arange(positions_count, device=device), frequencies(preset, device))


def turned(positions: Tensor, frequencies: Tensor) -> tuple[Tensor, Tensor]:
    """cos and sin of positions (n,) times frequencies (head_dim / 2,), in float32, where the angle is exact enough."""
    angles = positions[:, None].float() * frequencies
    return angles.cos(), angles.sin()


def _scaled(plain: Tensor, scaling: RopeScaling) -> Tensor:
    turns = scaling.original_context * plain / (2 * math.pi)
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    kept = ((turns - low) / (high - low)).clamp(0, 1)
    return (1 - kept) * plain / scaling.factor + kept * plain
