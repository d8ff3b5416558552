"""Kernels that end their process are caught by the worker, which goes on."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kernelyard.verify.isolation import Worker
from tests.devices import each_on_its_devices
from tests.wrong_kernels.catalogue import Entry
from tests.wrong_kernels.process import PROCESS


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    with Worker() as worker:
        yield worker


@each_on_its_devices(PROCESS)
def test_kernel_that_ends_its_process_is_caught(entry: Entry, device: str, worker: Worker) -> None:
    assert worker.run("tests.wrong_kernels.process:ready", {"device": device}, 100).value == {"sum": 3.0}
    limit_s = 3 if entry.name == "hang" else 100
    outcome = worker.run("tests.wrong_kernels.process:check", {"name": entry.name, "device": device}, limit_s)
    assert outcome.status is entry.status
    assert entry.says in outcome.reason
    assert outcome.value is None
