"""How many warps of a kernel an NVIDIA multiprocessor holds at a time, what keeps it from more, and how many waves a launch takes.

Source: NVIDIA, "CUDA C++ Programming Guide", 16.2 "Features and Technical Specifications" (table "Technical Specifications
per Compute Capability"), and the "CUDA Occupancy Calculator" that Nsight Compute carries: registers are given to a warp in
units of 256 from one of four equal parts of the file, shared memory to a block in units of 128 bytes, 1 KiB of it to the system.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from kernelyard.registry.lazy import torch

REGISTER_UNIT = 256
PARTS = 4
SHARED_UNIT = 128
RESERVED_SHARED_BYTES = 1024
BLOCKS = {(8, 0): 32, (8, 6): 16, (8, 7): 16, (8, 9): 24, (9, 0): 32, (10, 0): 32, (12, 0): 24}
"""Resident blocks of a multiprocessor by compute capability: the one limit that the device's properties do not have."""


@dataclass(frozen=True)
class Multiprocessor:
    """One multiprocessor's limits, and how many of them the device has."""

    count: int
    registers: int = 65536
    shared_bytes: int = 228 * 1024
    warps: int = 64
    blocks: int = 32


@dataclass(frozen=True)
class Launch:
    """One launch as the compiler and the grid tell it: registers of a thread, shared bytes and warps of a block, blocks."""

    registers: int
    shared_bytes: int
    warps: int
    blocks: int


@dataclass(frozen=True)
class Occupancy:
    """`blocks` resident on a multiprocessor, `share` of its warps, `limiter` of that, and `waves` of the whole launch.

    `filled` is the share of warps that the launch's own blocks can reach: a grid smaller than one wave fills fewer.
    """

    blocks: int
    share: float
    limiter: str
    waves: float
    filled: float


def occupancy(launch: Launch, machine: Multiprocessor) -> Occupancy:
    """The occupancy of a launch; 0 blocks where one block alone asks for more than there is."""
    registers = math.ceil(launch.registers * 32 / REGISTER_UNIT) * REGISTER_UNIT
    shared = math.ceil(launch.shared_bytes / SHARED_UNIT) * SHARED_UNIT + RESERVED_SHARED_BYTES
    limits = {
        "warps": machine.warps // launch.warps,
        "blocks": machine.blocks,
        "registers": _warps_by_registers(machine.registers, registers) // launch.warps if registers else machine.blocks,
        "shared memory": machine.shared_bytes // shared,
    }
    resident = min(limits.values())
    limiter = next(name for name, most in limits.items() if most == resident)
    wave = resident * machine.count
    share = resident * launch.warps / machine.warps
    waves = launch.blocks / wave if wave else math.inf
    return Occupancy(resident, share, limiter, waves, share * min(waves, 1.0))


def _warps_by_registers(file: int, per_warp: int) -> int:
    return file // PARTS // per_warp * PARTS


def multiprocessor() -> Multiprocessor | None:
    """That of the current GPU; None where the blocks that it holds aren't known."""
    index = torch.cuda.current_device()
    properties: Any = torch.cuda.get_device_properties(index)  # torch's stubs lack some
    capability = torch.cuda.get_device_capability(index)
    if capability not in BLOCKS:
        return None
    return Multiprocessor(
        count=properties.multi_processor_count,
        registers=properties.regs_per_multiprocessor,
        shared_bytes=properties.shared_memory_per_multiprocessor,
        warps=properties.max_threads_per_multi_processor // properties.warp_size,
        blocks=BLOCKS[capability],
    )
