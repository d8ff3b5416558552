"""Whether a model fits, asked before anything is allocated."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from kernelyard.errors import Unsupported


def free_bytes(device_type: str) -> int:
    """Memory that can still be taken: of the GPU, or of the host within the limit of its control group."""
    if device_type == "cuda":
        free, _ = torch.cuda.mem_get_info()
        return int(free) + torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
    return min(_host_available(), _group_available())


def require(need: int, device_type: str, what: str) -> None:
    """Raise Unsupported, with the need and what is free, unless `need` bytes fit."""
    free = free_bytes(device_type)
    if need > free:
        raise Unsupported(
            f"{what} need {_gib(need)}, which doesn't fit on {device_type}.",
            exists=f"Free: {_gib(free)}.",
            do="Take a smaller preset, shorter lengths or a smaller batch.",
        )


def _gib(count: int) -> str:
    return f"{count / 2**30:.2f} GiB"


def _host_available() -> int:
    """What the kernel says can be had without swapping; all of it where it doesn't say (macOS)."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    fields = {name: value for name, _, value in (line.partition(":") for line in lines)}
    return int(fields["MemAvailable"].split()[0]) * 1024


def _group_available(folder: Path = Path("/sys/fs/cgroup")) -> int:
    """The control group's limit (v2) less what it uses; a container has one where the host has none."""
    try:
        limit, used = (folder / "memory.max").read_text().strip(), (folder / "memory.current").read_text().strip()
    except OSError:
        return 1 << 62
    return 1 << 62 if limit == "max" else max(int(limit) - int(used), 0)
