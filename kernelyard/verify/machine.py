"""How much memory a process can still take on this machine, without torch."""

from __future__ import annotations

import resource
from pathlib import Path


def free_bytes() -> int | None:
    """On Linux the least of available memory, the control group's and the process's own limits; None where nothing tells."""
    limits = (available(), control_group(), _own("RLIMIT_AS", "VmSize:"), _own("RLIMIT_DATA", "VmData:"))
    return min((limit for limit in limits if limit is not None), default=None)


def available() -> int | None:
    """What the whole machine has free or can free."""
    return _field(Path("/proc/meminfo"), "MemAvailable:")


def control_group() -> int | None:
    """What is left of the limit of the process's control group; None where there is none."""
    try:
        folder = Path("/sys/fs/cgroup", Path("/proc/self/cgroup").read_text().splitlines()[-1].rpartition(":")[2].lstrip("/"))
        most, used = (folder / "memory.max").read_text().strip(), (folder / "memory.current").read_text()
    except (OSError, IndexError):
        return None
    return None if most == "max" else max(int(most) - int(used), 0)


def _own(limit: str, used: str) -> int | None:
    """What is left of a limit of this process, by its name in `resource` and what counts towards it in /proc."""
    most = resource.getrlimit(getattr(resource, limit))[0]
    taken = _field(Path("/proc/self/status"), used)
    return None if most == resource.RLIM_INFINITY or taken is None else max(most - taken, 0)


def _field(path: Path, name: str) -> int | None:
    """A figure in kB from a file of /proc, in bytes."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(name)), None)
