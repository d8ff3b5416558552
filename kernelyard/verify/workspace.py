"""What a kernel allocates through torch while it runs gets guards and poison too: a `TorchDispatchMode` around each launch.

Seen: tensors made by torch.empty, zeros, full and their kin in the kernel's own thread, a workspace or an output alike.
Not seen: memory taken by C++ or CUDA code itself, inside torch's own operators (the scratch of a softmax), by the code that
torch.compile generates, in other threads, or while a CUDA graph is captured, whose memory is the graph's own. There the
poisoned memory that was freed just before a launch has to do.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from kernelyard.verify import guards
from kernelyard.verify.guards import Guarded

_aten = torch.ops.aten
UNFILLED = frozenset({_aten.empty, _aten.empty_like, _aten.empty_strided, _aten.new_empty, _aten.new_empty_strided})
FILLED = frozenset({
    _aten.zeros, _aten.zeros_like, _aten.new_zeros, _aten.ones, _aten.ones_like, _aten.new_ones,
    _aten.full, _aten.full_like, _aten.new_full,
})  # fmt: skip


class Workspaces(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Active around one launch; `regions` are what the kernel allocated, in order. `byte` fills what torch leaves unfilled."""

    supports_higher_order_operators = True

    def __init__(self, byte: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.byte = byte
        self.regions: list[Guarded] = []

    @classmethod
    def is_infra_mode(cls) -> bool:
        """So that code that torch.compile made runs as it does without us, and is not compiled again or run eagerly."""
        return True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """No: torch would import its compiler, 2 s, to keep it away from a function that it never meets."""
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Runs the operator; a new tensor is put between guards."""
        result = func(*args, **(kwargs or {}))
        packet = getattr(func, "overloadpacket", None)  # operators of higher order have none
        if (packet not in UNFILLED and packet not in FILLED) or not _guardable(result):
            return result
        return self._guarded(result, None if packet in FILLED else self.byte)

    def _guarded(self, tensor: Tensor, byte: int | None) -> Tensor:
        region = guards.output(tensor)
        if byte is None:
            region.tensor.copy_(tensor)
        else:
            guards.poison(region, byte & 1 if tensor.dtype == torch.bool else byte)  # other bytes are no bool
        self.regions.append(region)
        return region.tensor


def astray(regions: list[Guarded], outputs: tuple[Any, ...]) -> list[str]:
    """Stores beside what the kernel allocated itself, in words."""
    owners = {output.untyped_storage().data_ptr() for output in outputs if isinstance(output, Tensor)}
    found = []
    for region in regions:
        if words := guards.astray(region):
            own = region.buffer.untyped_storage().data_ptr() in owners
            what = "" if own else f" of a workspace, {described(region.tensor)}"
            found.append(f"a store out of bounds{what}: {words}")
    return found


def described(tensor: Tensor) -> str:
    """'float32 (4, 128)'."""
    return f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"


def _guardable(tensor: Any) -> bool:
    """Plain memory of one device, of some size, that no graph under capture owns."""
    if type(tensor) is not Tensor or tensor.numel() == 0 or tensor.layout is not torch.strided or tensor.is_quantized:
        return False
    if tensor.device.type == "cuda":
        return not torch.cuda.is_current_stream_capturing()
    return tensor.device.type == "cpu" and not tensor.is_pinned()


