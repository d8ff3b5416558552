"""The example plugins that bring other people's kernels, on the path but not installed, and without what they depend on."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from kernelyard.registry.kernel import Kernel
from kernelyard.registry.lazy import load
from tests.peers import stand_ins

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
PLUGINS = ("liger", "quack", "fa4")


@pytest.fixture
def peers(monkeypatch: pytest.MonkeyPatch) -> Iterator[Mapping[str, Kernel]]:
    """Their kernels by name. What is imported of them is forgotten afterwards: the next test may have other packages on the path."""
    for plugin in PLUGINS:
        monkeypatch.syspath_prepend(EXAMPLES / f"kernelyard-{plugin}")
    yield {kernel.name: kernel for plugin in PLUGINS for kernel in load(f"kernelyard_{plugin}:KERNELS")}
    for name in [name for name in sys.modules if name.partition(".")[0] in {f"kernelyard_{plugin}" for plugin in PLUGINS}]:
        del sys.modules[name]


@pytest.fixture
def stood_in(peers: Mapping[str, Kernel], monkeypatch: pytest.MonkeyPatch) -> Mapping[str, Kernel]:
    """The kernels, with stand-ins for what they call."""
    for name, module in stand_ins.modules().items():
        monkeypatch.setitem(sys.modules, name, module)
    return peers
