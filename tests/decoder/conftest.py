"""A decoder small enough to run in milliseconds: grouped queries, odd sizes, and a vocabulary that is no power of two."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from kernelyard.decoder.cache import KVCache
from kernelyard.decoder.model import Decoder
from kernelyard.decoder.presets import Preset

SMALL = Preset("small", hidden=128, layers=2, heads=4, kv_heads=2, head_dim=32, intermediate=160, vocab=97, context=64, tied=True)


@pytest.fixture(scope="package", autouse=True)
def one_thread() -> Iterator[None]:
    """A model this small gains nothing from threads, and on a busy machine each of its many short loops would wait for them."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def preset() -> Preset:
    return SMALL


@pytest.fixture(scope="session")
def model() -> Decoder:
    return Decoder(SMALL, seed=0)


@pytest.fixture
def cache() -> KVCache:
    return KVCache(SMALL, 16)
