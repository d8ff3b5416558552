from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from kernelyard.decoder import presets, rotary
from kernelyard.decoder.presets import RopeScaling
from kernelyard.registry.spec import DeclarationError

LLAMA = replace(presets.find("8b"), rope_scaling=RopeScaling(8.0, 1.0, 4.0, 8192))


def test_frequencies_are_powers_of_theta() -> None:
    found = rotary.frequencies(presets.find("1b"), "cpu").double()
    torch.testing.assert_close(found, 500_000.0 ** -(torch.arange(32).double() / 32), rtol=1e-6, atol=0)


def released(f: float) -> float:
    """`apply_scaling` of Llama 3.1's release for one frequency, by wavelengths and branches, as it stands there."""
    wavelength = 2 * math.pi / f
    if wavelength < 8192 / 4:
        return f
    if wavelength > 8192 / 1:
        return f / 8
    smooth = (8192 / wavelength - 1) / (4 - 1)
    return (1 - smooth) * f / 8 + smooth * f


def test_llama_3_1_stretches_long_waves_leaves_short_ones_and_blends_between() -> None:
    plain = rotary.frequencies(presets.find("8b"), "cpu").double()
    found = rotary.frequencies(LLAMA, "cpu").double()
    torch.testing.assert_close(found, torch.tensor([released(f) for f in plain.tolist()], dtype=torch.float64), rtol=1e-6, atol=0)
    ratios = plain / found
    assert (ratios < 1.001).any() and (ratios > 7.999).any() and ((ratios > 1.1) & (ratios < 7.9)).any()


def test_a_table_holds_cos_and_sin_of_each_position_in_float32() -> None:
    cos, sin = rotary.table(LLAMA, 5, "cpu")
    assert cos.shape == sin.shape == (5, 64) and cos.dtype == sin.dtype == torch.float32
    angle = 3 * rotary.frequencies(LLAMA, "cpu")
    assert torch.equal(cos[3], angle.cos()) and torch.equal(sin[3], angle.sin())


@pytest.mark.parametrize("wrong", [(0.5, 1, 4, 8192), (8, 4, 4, 8192), (8, 0, 4, 8192), (8, 1, 4, 0)])
def test_a_scaling_that_means_nothing_is_refused(wrong: tuple[float, float, float, int]) -> None:
    with pytest.raises(DeclarationError, match="rope scaling"):
        RopeScaling(*wrong)
