"""The two example plugins that bring other people's kernels, on the path but not installed, and without what they depend on."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from kernelyard.registry.kernel import Kernel
from kernelyard.registry.lazy import load

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
PLUGINS = ("liger", "quack")


@pytest.fixture
def peers(monkeypatch: pytest.MonkeyPatch) -> Iterator[Mapping[str, Kernel]]:
    """Their kernels by name. What is imported of them is forgotten afterwards: the next test may have other packages on the path."""
    for plugin in PLUGINS:
        monkeypatch.syspath_prepend(EXAMPLES / f"kernelyard-{plugin}")
    yield {kernel.name: kernel for plugin in PLUGINS for kernel in load(f"kernelyard_{plugin}:KERNELS")}
    for name in [name for name in sys.modules if name.partition(".")[0] in ("kernelyard_liger", "kernelyard_quack")]:
        del sys.modules[name]
