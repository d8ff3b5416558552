"""Whether the process that began something still lives: by pid, start time and host, because pids are used again."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def me() -> dict[str, Any]:
    """This process, as it is written beside what it begins."""
    return {"pid": os.getpid(), "host": platform.node(), "started": _started(os.getpid())}


def lives(owner: Mapping[str, Any]) -> bool:
    """Whether that process still runs; one on another host can't be asked and is taken to."""
    if owner.get("host") != platform.node():
        return bool(owner)
    started = _started(int(owner["pid"]))
    return started != "" and started == owner.get("started")


def _started(pid: int) -> str:
    """When a process started, in the system's own terms; empty where there is none."""
    if Path("/proc/self/stat").exists():
        try:
            # The name in parentheses may hold anything; field 22 of proc(5) is the 20th after it.
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return ""
        return "" if fields[0] in "ZX" else fields[19]
    asked = subprocess.run(["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return asked.stdout.strip()
