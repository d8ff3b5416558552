from __future__ import annotations

import subprocess
import sys

import pytest

from kernelyard.decoder import presets
from kernelyard.decoder.presets import Preset
from kernelyard.errors import UnknownName
from kernelyard.registry.spec import DeclarationError


def test_the_llama_presets_have_the_published_number_of_weights() -> None:
    assert presets.find("1b").parameters == 1_235_814_400
    assert presets.find("8b").parameters == 8_030_261_248


def test_an_unknown_preset_is_refused_with_those_that_exist() -> None:
    with pytest.raises(UnknownName, match=r"no preset named '70b'\. There are: 1b, 8b, tiny\."):
        presets.find("70b")


def test_heads_that_do_not_divide_among_kv_heads_are_refused() -> None:
    with pytest.raises(DeclarationError, match="33 heads can't share 2 kv_heads"):
        Preset("odd", 64, 1, 33, 2, 8, 64, 10, 16)


def test_a_size_of_zero_is_refused() -> None:
    with pytest.raises(DeclarationError, match="kv_heads is 0"):
        Preset("none", 64, 1, 4, 0, 8, 64, 10, 16)


def test_presets_and_the_law_are_read_without_torch() -> None:
    code = "import sys, kernelyard.decoder.presets, kernelyard.decoder.amdahl; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
