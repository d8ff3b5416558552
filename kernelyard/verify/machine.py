"""How much memory a process can still take on this machine, and whether an error tells of the want of it. No torch."""

from __future__ import annotations

import resource
from pathlib import Path

OUT_OF_MEMORY = "out of memory"


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


def is_out_of_memory(error: BaseException) -> bool:
    """Python's own, torch's of a GPU, torch's of a CPU (a plain RuntimeError), and C++'s as a binding passes it on."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in ("can't allocate memory", "std::bad_alloc"))


def out_of_memory(error: BaseException) -> str:
    """Such an error in one line, which begins with OUT_OF_MEMORY."""
    return f"{OUT_OF_MEMORY}: {str(error).partition(chr(10))[0][:800]}".rstrip(": ")


def raised(error: BaseException) -> str:
    """What a kernel raised, in words."""
    return out_of_memory(error) if is_out_of_memory(error) else f"raised {type(error).__name__}: {str(error)[:800]}"


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
