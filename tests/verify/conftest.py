"""One thread: on a few cores with other work, torch's threads wait for each other more than they compute."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from kernelyard.registry import registry
from kernelyard.verify.isolation import Worker


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def planted() -> Iterator[None]:
    """The plugin of planted faults, in this process and in every child that it starts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KERNELYARD_EXTRA_PLUGINS", "tests.wrong_kernels.planted:plugin")
        registry.reset()
        yield
    registry.reset()


@pytest.fixture(scope="module")
def worker(planted: None) -> Iterator[Worker]:
    with Worker() as worker:
        yield worker
