"""Right kernels pass on every device, however odd."""

from __future__ import annotations

from dataclasses import replace

from kernelyard.registry.spec import Determinism
from tests.devices import each_on_its_devices, on_each_device
from tests.wrong_kernels.catalogue import Entry
from tests.wrong_kernels.right import RIGHT
from tests.wrong_kernels.workspaces import RIGHT_WORKSPACES


@each_on_its_devices((*RIGHT, *RIGHT_WORKSPACES))
def test_right_kernel_passes(entry: Entry, device: str) -> None:
    report = entry.check(device=device)
    assert report.ok, report.failures[:3]
    assert report.unsupported == 0


@on_each_device
def test_the_same_split_sum_declared_bitwise_is_caught(device: str) -> None:
    split = next(entry for entry in RIGHT if entry.determinism is Determinism.NONE)
    report = replace(split, determinism=Determinism.RUN_TO_RUN).check(device=device)
    assert any("it is declared run-to-run" in failure.reason for failure in report.failures)
