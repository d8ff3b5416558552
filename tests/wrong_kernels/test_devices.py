"""Planted kernels keep to the device of their arguments, so that what is shown on a CPU is shown on a GPU too."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

from kernelyard.verify import state
from tests.wrong_kernels.catalogue import MATRICES, OPS, Entry
from tests.wrong_kernels.right import RIGHT
from tests.wrong_kernels.test_wrong_kernels import WRONG
from tests.wrong_kernels.workspaces import RIGHT_WORKSPACES

CPU = torch.device("cpu")
MAKERS = {torch.empty, torch.zeros, torch.ones, torch.full, torch.tensor, torch.arange, torch.rand, torch.randn, torch.randint}
ON_A_CPU = [entry for entry in (*WRONG, *RIGHT, *RIGHT_WORKSPACES) if "cpu" in entry.devices]


class Told(TorchFunctionMode):
    """Refuses to make a tensor where no device is named."""

    def __torch_function__(self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        assert function not in MAKERS or "device" in (kwargs or {}), f"torch.{function.__name__} was not told the device"
        return function(*args, **(kwargs or {}))


@pytest.fixture(autouse=True)
def state_is_put_back() -> Iterator[None]:
    before = state.snapshot(CPU)
    yield
    state.restore(before)
    state.restore_clocks()


@pytest.mark.parametrize("entry", ON_A_CPU, ids=lambda entry: entry.name)
def test_no_planted_kernel_makes_a_tensor_without_naming_its_device(entry: Entry) -> None:
    op = OPS[entry.op]
    workload = op.workload(MATRICES[entry.op].points[-1], "cpu")
    args, built = op.inputs(workload, torch.Generator().manual_seed(0)), entry.make()
    outputs = op.empty(*args)
    with Told():
        built.call(*args)
        if built.into is not None:
            built.into(outputs, *args)
