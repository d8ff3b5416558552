"""A plugin whose contract has a slip in its reference."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kernelyard.contracts.rmsnorm import RMSNORM
from kernelyard.registry.discovery import Plugin
from kernelyard.registry.kernel import Kernel, Support


def reference(*args: Any) -> Any:
    raise ZeroDivisionError("a slip in the contract")


SUPPORT = Support(("cpu",), RMSNORM.dtypes)
plugin = Plugin(
    "slips",
    ops=(replace(RMSNORM, name="slipping", reference=reference),),
    kernels=(Kernel("torch.eager", "slipping", "torch", "right", "kernelyard.plugins.eager.rmsnorm:eager", SUPPORT),),
)
