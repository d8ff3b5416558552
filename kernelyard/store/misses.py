"""The misses that processes leave behind: one small JSON file in the home, merged under a lock and replaced as a whole.

Not in the database: a process that only serves never writes there, and must not wait for, migrate or set aside anybody's tuning
when it ends. What is lost here costs a list, so a file that can't be read is begun anew, and one that can't be written is said.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from kernelyard.errors import StoreFailed
from kernelyard.registry.home import home, home_path
from kernelyard.registry.spec import Miss, Missed
from kernelyard.store.choices import warn_once
from kernelyard.store.files import file_lock
from kernelyard.store.records import now

NAME = "misses.json"
FORMAT = 1
MOST = 1000
"""Misses that are kept, those seen last: some 500 KB."""
LOCK_S = 2.0
"""A process that ends must not hang on another; merging takes milliseconds."""


@dataclass(frozen=True, slots=True)
class Kept:
    """A miss, how many processes met it, and when the last of them ended."""

    miss: Miss
    processes: int
    last_seen: str

    @property
    def key(self) -> tuple[str, str, str]:
        """What makes two of them one: a workload of an op on a kind of device."""
        return self.miss.op, self.miss.workload_key, self.miss.device_key


def keep(misses: Sequence[Miss]) -> None:
    """Merge the misses of a process into the file; says so, and raises nothing, where that can't be."""
    try:
        folder = home()
        with file_lock(folder / f"{NAME}.lock", LOCK_S):
            _replace(folder / NAME, _merged(listed(folder / NAME), misses))
    except (StoreFailed, OSError) as error:
        warn_once(f"the misses of this process could not be kept ({error}); `kernelyard cache misses` will not list them")


def listed(path: Path | None = None) -> list[Kept]:
    """All that were kept, those of most processes first; none where there is no file, or none that can be read."""
    path = path or home_path() / NAME
    try:
        content = json.loads(path.read_text())
        if content["format"] != FORMAT:
            raise ValueError(f"it is of format {content['format']!r}, not {FORMAT}")
        found = [_kept(row) for row in content["misses"]]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        warn_once(f"the list of misses {path} can't be read ({error}); it is begun anew")
        return []
    return sorted(found, key=lambda one: (-one.processes, one.key))


def _kept(row: dict[str, Any]) -> Kept:
    fields = {**row, "missed": Missed(row["missed"])}
    return Kept(processes=int(fields.pop("processes")), last_seen=str(fields.pop("last_seen")), miss=Miss(**fields))


def _merged(before: Sequence[Kept], misses: Sequence[Miss]) -> list[Kept]:
    """Both, those seen last kept where they are too many; a cause that changed is the newer one."""
    moment, found = now(), {one.key: one for one in before}
    for key, new in {one.key: one for one in (Kept(miss, 1, moment) for miss in misses)}.items():
        known = found.get(key)
        found[key] = replace(new, processes=known.processes + 1) if known else new
    return sorted(found.values(), key=lambda one: one.last_seen, reverse=True)[:MOST]


def _replace(path: Path, kept: Sequence[Kept]) -> None:
    rows = [{**asdict(one.miss), "processes": one.processes, "last_seen": one.last_seen} for one in kept]
    fresh = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        fresh.write_text(json.dumps({"format": FORMAT, "misses": rows}, indent=0))
        fresh.replace(path)
    finally:
        fresh.unlink(missing_ok=True)
