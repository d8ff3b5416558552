"""Every wrong kernel is caught, with the right status and a reason that names its fault; no defence is idle."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kernelyard.verify.defences import ALL, DEFENCES
from tests.wrong_kernels.addresses import ADDRESSES
from tests.wrong_kernels.arithmetic import ARITHMETIC
from tests.wrong_kernels.attentions import ATTENTIONS
from tests.wrong_kernels.catalogue import Entry
from tests.wrong_kernels.conduct import CONDUCT, KEPT
from tests.wrong_kernels.workspaces import WORKSPACES

WRONG = (*ARITHMETIC, *ADDRESSES, *CONDUCT, *WORKSPACES, *ATTENTIONS)
WITNESSES = {entry.defence: entry for entry in WRONG if entry.defence}


@pytest.fixture(autouse=True)
def give_back_what_leaked() -> Iterator[None]:
    yield
    KEPT.clear()


@pytest.mark.parametrize("entry", WRONG, ids=lambda entry: entry.name)
def test_wrong_kernel_is_caught_and_its_fault_named(entry: Entry) -> None:
    report = entry.check()
    assert not report.ok
    named = [failure for failure in report.failures if entry.says.lower() in failure.reason.lower()]
    assert named, f"'{entry.says}' is in none of:\n" + "\n".join(sorted({f.reason for f in report.failures})[:8])
    assert {failure.status for failure in named} == {entry.status}


def test_names_are_not_repeated_and_there_are_many() -> None:
    assert len({entry.name for entry in WRONG}) == len(WRONG) >= 60


@pytest.mark.parametrize("defence", sorted(ALL - {"stream"}))
def test_with_a_defence_switched_off_a_wrong_kernel_gets_through(defence: str) -> None:
    report = WITNESSES[defence].check(ALL - {defence})
    assert report.ok, report.failures[0]


def test_every_defence_has_a_witness() -> None:
    assert set(DEFENCES) - set(WITNESSES) == {"stream"}, "work on another stream needs a GPU: test_streams"
