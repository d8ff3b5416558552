"""The ways in which a device copies memory. A ceiling is the best of them at the size in question.

On a CPU a copy shared among threads gains bandwidth and pays for waking them; one thread may be faster in the end. On a
GPU `copy_` is a memcpy of the driver's, which was slower at an odd size (a vector_add of 1000003 bf16 "beat" it by 18%, one of 1048576 did
not; sizes are rounded up for that, not measured since), and an elementwise kernel is another way with another start-up time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from kernelyard.measure.arguments import Rotation, rotate
from kernelyard.registry.backend import Executable
from kernelyard.registry.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor

ALIGNED_BYTES = 16
"""The widest access of one thread, and what torch's allocators align to."""

WAYS = {"cpu": ("all threads", "one thread"), "cuda": ("memcpy", "elementwise kernel")}


def copies(nbytes: int, device_type: str) -> dict[str, tuple[Executable, Rotation]]:
    """Every way of the device on the same arguments: so many bytes in all, half of them read and half written."""
    arguments = copy_arguments(nbytes, device_type)
    return {way: (copier(way), arguments) for way in WAYS[device_type]}


def copy_arguments(nbytes: int, device_type: str) -> Rotation:
    """Contiguous, aligned source and target, each of half the bytes rounded up to a multiple of 16; at least 16."""
    half = max(-(-nbytes // (2 * ALIGNED_BYTES)), 1) * ALIGNED_BYTES
    source = torch.rand(half // 4, device=device_type)
    return rotate((torch.empty_like(source),), (source,), device_type)


def copier(way: str) -> Executable:
    """One way; `call` allocates its target as a kernel does its output."""
    into = {"all threads": _copy, "memcpy": _copy, "one thread": _one_threaded(), "elementwise kernel": _elementwise}[way]

    def call(source: Tensor) -> Tensor:
        target = torch.empty_like(source)
        into((target,), source)
        return target

    return Executable(call, into)


def _copy(outputs: tuple[Tensor, ...], source: Tensor) -> None:
    outputs[0].copy_(source)


def _elementwise(outputs: tuple[Tensor, ...], source: Tensor) -> None:
    torch.mul(source, 1.0, out=outputs[0])


def _one_threaded() -> Callable[[tuple[Tensor, ...], Tensor], None]:
    """Sets the number of threads around each copy: 0.6 us, nothing beside a copy that threads could share."""
    threads = torch.get_num_threads()

    def into(outputs: tuple[Tensor, ...], source: Tensor) -> None:
        torch.set_num_threads(1)
        outputs[0].copy_(source)
        torch.set_num_threads(threads)

    return into
