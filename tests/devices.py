"""Where tests of kernels run: on the CPU always, on a GPU where there is one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

import pytest

MARKS = {"cpu": (), "cuda": pytest.mark.gpu}
on_each_device = pytest.mark.parametrize("device", [pytest.param(device, marks=marks) for device, marks in MARKS.items()])


class Placed(Protocol):
    """Something with a name that is tried on the devices it is for."""

    @property
    def name(self) -> str: ...

    @property
    def devices(self) -> tuple[str, ...]: ...


def each_on_its_devices(entries: Iterable[Placed]) -> pytest.MarkDecorator:
    """Parameters `entry` and `device`: every entry on every device that it is for."""
    pairs: list[Any] = [
        pytest.param(entry, device, marks=MARKS[device], id=f"{entry.name}-{device}") for entry in entries for device in entry.devices
    ]
    return pytest.mark.parametrize(("entry", "device"), pairs)
