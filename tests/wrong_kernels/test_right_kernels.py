"""Right kernels pass, however odd."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kernelyard.registry.spec import Determinism
from tests.wrong_kernels.catalogue import Entry
from tests.wrong_kernels.right import RIGHT
from tests.wrong_kernels.workspaces import RIGHT_WORKSPACES


@pytest.mark.parametrize("entry", (*RIGHT, *RIGHT_WORKSPACES), ids=lambda entry: entry.name)
def test_right_kernel_passes(entry: Entry) -> None:
    report = entry.check()
    assert report.ok, report.failures[:3]
    assert report.unsupported == 0


def test_the_same_split_sum_declared_bitwise_is_caught() -> None:
    split = next(entry for entry in RIGHT if entry.determinism is Determinism.NONE)
    report = replace(split, determinism=Determinism.RUN_TO_RUN).check()
    assert any("it is declared run-to-run" in failure.reason for failure in report.failures)
