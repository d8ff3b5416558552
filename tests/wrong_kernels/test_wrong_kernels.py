"""Every wrong kernel is caught on every device, with the right status and a reason that names its fault; no defence is idle."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kernelyard.verify.defences import ALL, DEFENCES
from tests.devices import each_on_its_devices
from tests.wrong_kernels.addresses import ADDRESSES
from tests.wrong_kernels.arithmetic import ARITHMETIC
from tests.wrong_kernels.attentions import ATTENTIONS
from tests.wrong_kernels.catalogue import Entry
from tests.wrong_kernels.conduct import CONDUCT, KEPT
from tests.wrong_kernels.workspaces import WORKSPACES

WRONG = (*ARITHMETIC, *ADDRESSES, *CONDUCT, *WORKSPACES, *ATTENTIONS)
WITNESSES = [entry for entry in WRONG if entry.defence]


@pytest.fixture(autouse=True)
def give_back_what_leaked() -> Iterator[None]:
    yield
    KEPT.clear()


@each_on_its_devices(WRONG)
def test_wrong_kernel_is_caught_and_its_fault_named(entry: Entry, device: str) -> None:
    report = entry.check(device=device)
    assert not report.ok
    named = [failure for failure in report.failures if entry.says.lower() in failure.reason.lower()]
    assert named, f"'{entry.says}' is in none of:\n" + "\n".join(sorted({f.reason for f in report.failures})[:8])
    assert {failure.status for failure in named} == {entry.status}


def test_names_are_not_repeated_and_there_are_many() -> None:
    assert len({entry.name for entry in WRONG}) == len(WRONG) >= 60


@each_on_its_devices(WITNESSES)
def test_with_its_defence_switched_off_a_wrong_kernel_gets_through(entry: Entry, device: str) -> None:
    report = entry.check(ALL - {entry.defence}, device)
    assert report.ok, report.failures[0]


@pytest.mark.parametrize(("device", "idle"), [("cpu", {"stream"}), ("cuda", set())])
def test_every_defence_has_one_witness_on_each_device(device: str, idle: set[str]) -> None:
    assert sorted(entry.defence for entry in WITNESSES if device in entry.devices) == sorted(set(DEFENCES) - idle)
